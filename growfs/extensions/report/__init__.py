"""`growfs report`: `figures` reads the history of a cache, `charts` makes data of it, and `page` shows that."""
