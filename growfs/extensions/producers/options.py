"""The options of --producer and py:."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter

from growfs.daemon.option_parsers import PYTHON_SCHEME, function
from growfs.daemon.options import FeatureOptions, Options, option, refuse
from growfs.errors import UsageError
from growfs.remote.interface import RemoteSpec, Traits
from growfs.remote.names import template_fields
from growfs.remote.user_functions import Function
from growfs.units import count as whole
from growfs.units import positive, seconds, size


def rename(text: str) -> str:
    """A template of the names of the files that a producer creates."""
    try:
        fields = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        text.format(index=0, **template_fields("x/y.z"))
    except (ValueError, KeyError, IndexError, AttributeError):
        fields = set()
    if not fields:
        known = ", ".join(f"{{{name}}}" for name in template_fields("x"))
        raise UsageError(f"{text!r} does not name files; use {known} or {{index}}, such as '{{stem}}.tfrecord'")
    return text


@dataclass(frozen=True, kw_only=True)
class ProducersOptions(FeatureOptions):
    """See FeatureOptions."""

    producer: Function | None = option(
        None,
        function,
        "FUNCTION",
        "Create each file with your own function: mypkg.shards:make or shards.py:make.",
        group="Producers and archives",
        affects_node=True,
    )
    rename: str | None = option(
        None,
        rename,
        "TEMPLATE",
        "Template for the names of created files: '{stem}.tfrecord'; also {name}, {parent}, {suffix}, {index}.",
    )
    count: int | None = option(None, positive, "N", "Create N files with py:FUNCTION instead of an endless sequence.")
    producer_timeout: float = option("10m", seconds, "TIME", "Time limit for creating one file; 0: no limit.")
    producer_memory: int = option("4GiB", size, "SIZE", "Memory limit for each producer process.")
    producer_retries: int = option(
        "2",
        whole,
        "N",
        "Retries if the producer fails on a file; after the last one, the file is skipped for this pass.",
    )

    def check(self, options: Options, url: str) -> None:
        """See FeatureOptions."""
        no_remote, given = url.startswith(PYTHON_SCHEME), options.changed()
        names = {name for _, name, _, _ in Formatter().parse(self.rename or "") if name is not None}
        by_index = "index" in names
        store = options.endpoint_url or options.anon or options.storage_option
        refuse(
            "",
            (no_remote and self.producer, "--producer cannot be used with py:, which names a producer itself"),
            (no_remote and "--manifest" in given, "--manifest cannot be used with py:, which has no remote files"),
            ("--members" in given and self.producer, "--members and --producer cannot be used together"),
            (no_remote and "--members" in given, "--members cannot be used with py:, which has no remote archives"),
            (no_remote and (options.include or options.exclude), "--include and --exclude cannot be used with py:"),
            (no_remote and store, "--endpoint-url, --anon and --storage-option cannot be used with py:"),
            (no_remote and names - {"index"}, "--rename with py: can use only {index}, as in 'shard-{index:06d}'"),
            (no_remote and options.group, "--group cannot be used with py:, which creates each file separately"),
            (no_remote and self.rename and not by_index, "--rename with py: needs {index}, as in 'shard-{index:06d}'"),
            (
                not no_remote and by_index,
                "--rename can use {index} only with py:; for remote files, use {stem} and others",
            ),
            (not no_remote and self.count, "--count needs py:FUNCTION as the URL"),
            (not (no_remote or self.producer) and self.rename, "--rename needs --producer"),
        )

    def remote(self, spec: RemoteSpec, options: Options, folder: Path) -> RemoteSpec:
        """See FeatureOptions. A function in the URL is looked for in folder."""
        no_remote = spec.url.startswith(PYTHON_SCHEME)
        function = Function.parse(spec.url.removeprefix(PYTHON_SCHEME), str(folder)) if no_remote else self.producer
        if function is None:
            return spec
        from growfs.extensions.producers.produced import Producer

        maker = Producer(
            function=function,
            rename=self.rename,
            timeout_s=self.producer_timeout,
            memory_bytes=self.producer_memory,
            retries=self.producer_retries,
            seed=options.seed if no_remote else None,
            count=self.count,
        )
        traits = Traits(
            is_computed=True,
            has_store=not no_remote,
            is_endless=no_remote and self.count is None,
            keeps_names=self.rename is None,
        )
        identity = (*spec.identity, str(function), maker.rename, maker.seed)
        return replace(spec, maker=maker, traits=traits, identity=identity)
