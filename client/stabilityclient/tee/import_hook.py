"""Tells when the script has imported a library, before it uses it. Imports nothing by itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from stabilityclient.tee.library import Library
    from stabilityclient.tee.recording import Recording

__all__ = ["ImportHook"]


class ImportHook:
    """A finder in ``sys.meta_path`` that lets the others find, and has a library patched once it is executed."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._awaited: dict[str, Library] = {}

    def add(self, library: Library) -> None:
        """Await the modules of a library."""
        self._awaited.update(dict.fromkeys(library.modules, library))

    def install(self) -> None:
        """Look at each import from now on; what is imported already is patched at once."""
        sys.meta_path.insert(0, self)
        for name in self._awaited:
            if (module := sys.modules.get(name)) is not None:
                self._patch(name, module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the other finders find."""
        if name not in self._awaited:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._follow(name, spec)
                    return spec
        return None

    def _follow(self, name: str, spec: ModuleSpec) -> None:
        if spec.loader is None:
            return  # a folder without code, such as that in which W&B keeps its files
        try:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._patch(name, module)

            # On this loader alone: whoever asks for its class, or reads files of the package by it, finds it as it was.
            loader.exec_module = exec_module
        except Exception as error:
            self._recording.trouble(f"the import of {name} can't be followed", error)

    def _patch(self, name: str, module: ModuleType) -> None:
        library = self._awaited[name]
        try:
            library.patch(name, module)
        except Exception as error:
            version = getattr(sys.modules.get(name.partition(".")[0]), "__version__", "of this version")
            self._recording.trouble(f"{library.title} {version} is not as expected, its values are not taken", error)
