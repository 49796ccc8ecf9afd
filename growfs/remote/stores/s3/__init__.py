"""S3: signed requests, and a listing by several readers in parallel."""
