"""Models that several processes run together: saved as one folder, loaded by rank, held to be the same everywhere.

A folder holds a program for each rank and a manifest that says for how many processes, which mesh and which process
groups they were compiled, and what is in each file. It appears complete or not at all.

Processes that run different programs wait for each other for ever, or add up numbers that do not belong together. So
before the first call of a model its ranks compare what they are about to communicate, by way of the store that every
process group starts with: that needs no collective, and names the rank that is different or absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from trt_core.errors import ExecutionError, FileError, InputError, PlanError
from trt_core.files import records, typed
from trt_core.files.folder import Folder
from trt_core.files.opening import FileOfFolder, opened, read_file
from trt_core.files.replacing import Path as FilePath
from trt_core.files.replacing import explaining_no_room, file_name
from trt_core.files.staging import leftovers, locked_folder, take_away
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.held_arguments import held_to_signature
from trt_core.process_groups import show_ranks
from trt_core.wording import kind_of
from trt_runtime.bindings import MAX_RANK
from trt_runtime.program.fields import RANK, SAVE

MANIFEST: Final = "manifest.json"
"""Name of the file that makes a folder a sharded program."""

_MOST_SAID: Final = 1000  # characters of what ranks tell each other beside digests
_SECONDS_TO_GIVE_UP: Final = 5.0  # by how much ranks may have come to a call after each other

FORMAT_VERSION: Final = 1
"""Version of the manifest; a folder of another version is refused."""

_AGAIN: Final = "save the model again"
_OLD: Final = "-old"
_MAX_BYTES: Final = 64 << 20
_FILE: Final = re.compile(r"rank-[0-9]{1,9}\.trtp")

Ranks = tuple[int, ...]
_T = TypeVar("_T")


class Compared:
    """How often something was compared with other ranks: processes that form groups anew have compared nothing."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, Counter[Any]] = WeakKeyDictionary()

    def here(self) -> Counter[Any]:
        """The counts for the process groups that are there now, which have one store."""
        import torch.distributed as dist

        store: Any = Compared  # stands for the one that is not there
        if dist.is_available() and dist.is_initialized():
            from trt_runtime.internals import default_store

            store = default_store()
        return self._counts.setdefault(store, Counter())


_said: Final = Compared()  # how often this process has said what it has, to each set of ranks
_heard: Final = Compared()  # how often it has heard of each other rank of them
_given_up: Final = Compared()  # how often it has waited for one of them in vain
_agreed: Final = Compared()  # digests that were the same on all ranks of a group, see `compare_new`


@dataclass(frozen=True)
class Mesh:
    """The device mesh that a model was sharded over.

    Attributes:
        shape: Extents.
        names: Names of its dimensions; empty where they have none.
        ranks: The ranks in it, row by row.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    ranks: Ranks

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """Reads a `torch.distributed.device_mesh.DeviceMesh`.

        Raises:
            InputError: It is none.
        """
        if not hasattr(mesh, "mesh") or not hasattr(mesh, "mesh_dim_names"):
            raise InputError(f"{kind_of(mesh)} is no device mesh", hint="give what init_device_mesh returns")
        return cls(
            tuple(mesh.mesh.shape), tuple(mesh.mesh_dim_names or ()), tuple(int(rank) for rank in mesh.mesh.flatten())
        )

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"{'x'.join(map(str, self.shape))}{f' ({names})' if names else ''} of ranks {show_ranks(self.ranks)}"


@dataclass(frozen=True)
class RankProgram:
    """The program of one rank.

    Attributes:
        file: Name of its file in the folder.
        size: Bytes of the file.
        sha256: Digest of its content.
        collectives: Digest of what it communicates in each group, by the group's ranks among those of the folder.
    """

    file: str
    size: int = field(metadata={"key": "bytes"})
    sha256: str
    collectives: Mapping[Ranks, str]


@dataclass(frozen=True)
class Manifest(records.Grown):
    """What a folder says of itself.

    Attributes:
        world_size: Number of processes.
        mesh: The mesh, where one was named.
        groups: Ranks of the process groups that programs communicate in, by PyTorch's names for them.
        programs: One for each rank. A folder counts the ranks that saved it, in the order of their group.
        ranks: Those that saved it, as the whole job counts them, where there are others.
    """

    TAG: ClassVar = ("format", FORMAT_VERSION)

    world_size: int
    mesh: Mesh | None
    groups: Mapping[str, Ranks]
    programs: tuple[RankProgram, ...]
    ranks: Ranks = ()

    def to_json(self) -> str:
        """Returns the text of the manifest."""
        return json.dumps(records.write(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """Reads what `to_json` wrote.

        Raises:
            PlanError: It is no manifest of this version.
        """
        try:
            found = typed.mapping(parse_json(text, max_bytes=_MAX_BYTES), "the manifest")
            version = typed.integer(found.get("format"), "format")
            if version != FORMAT_VERSION:
                raise PlanError(
                    f"the folder has format {version}, and this release reads {FORMAT_VERSION}",
                    where=where,
                    hint="save the model again",
                )
            manifest = records.read(cls, found, "the manifest")
            manifest._check()
            return manifest
        except (BadJson, typed.BadField) as error:
            raise PlanError("the manifest is damaged", where=where, why=str(error), hint=_AGAIN) from error

    def _check(self) -> None:
        world = typed.integer(self.world_size, "world_size", 1)
        if len(self.programs) != world:
            raise typed.BadField("programs", f"there are {len(self.programs)} for {world} processes")
        for program in self.programs:
            if not _FILE.fullmatch(program.file):
                raise typed.BadField("file", f"{program.file!r:.60} is no name of a program")
        for ranks in chain(self.groups.values(), *(program.collectives for program in self.programs)):
            if any(rank >= world for rank in ranks):
                raise typed.BadField("ranks", f"one is {world} or more")
            if len(ranks) != len(set(ranks)):  # each is compared with all others
                raise typed.BadField("ranks", "a group has one twice")
        if self.ranks and len(set(self.ranks)) != world:
            raise typed.BadField("ranks", f"there are {len(set(self.ranks))} for {world} processes")
        mesh = self.mesh
        if mesh is not None and (
            len(mesh.shape) > MAX_RANK or not 0 < math.prod(mesh.shape) == len(mesh.ranks) == len(set(mesh.ranks))
        ):
            raise typed.BadField("mesh", "it has no ranks, one of them twice, or more or less than its extents say")


@held_to_signature
def save_sharded(compiled: nn.Module, directory: FilePath, *, mesh: Any = None, group: Any = None) -> None:
    """Saves a model that several processes have compiled together; each of them calls this.

    Args:
        compiled: What `compile` returned on this rank.
        directory: A folder on a file system that all ranks see; an old one is replaced when the new one is complete.
        mesh: The device mesh of the model. A model that was saved with one is refused where another one is named.
        group: Process group through which the ranks agree on the folder; all of them by default.

    Raises:
        FileError: A rank could not write its part, or is gone; nothing is left of the folder then, an old one stays.
            Where a rank goes once the folder is complete the model is saved, and no rank raises this.
        InputError: `directory` is a file, or another folder than that of the first rank, where other ranks raise a
            `FileError`; or a fake process group plays the other ranks.
        PlanError: The ranks would not communicate in the same order.
        ExportError: See `save`.
    """
    target = Path(file_name(directory))
    rank, world = _rank_and_world(group)
    if world > 1 and _is_played(group):
        raise InputError(
            f"{world - 1} of the {world} ranks are not there to save their parts",
            where=str(target),
            why="a fake process group plays them",
            hint="start a process for each rank; trt_runtime.save saves the program of this one alone",
        )
    members = _ranks_of(group)
    together = _Together(group, world, target)
    with contextlib.ExitStack() as held:

        def begin() -> tuple[Mesh | None, str, str, str]:
            shape = None if mesh is None else Mesh.of(mesh)
            folder = held.enter_context(_new_folder_for(target)) if rank == 0 else ""
            return shape, folder, target.name, secrets.token_hex(16)

        shape, folder, name, model = together.each(begin)[0]
        staged, seen = Path(folder), _identity(Path(folder))

        def write() -> tuple[RankProgram, Mapping[str, Ranks]]:
            _require_same_folder(staged, name, target, rank)
            return _write_part(compiled, staged, rank, members, model)

        try:
            made = together.each(write)
            groups: dict[str, Ranks] = {}
            for _, known in made:
                groups.update(known)
            part = members if _ranks_of(None) != members else ()
            manifest = Manifest(world, shape, groups, tuple(program for program, _ in made), part)
            _require_same_order(manifest, str(target))
            together.each(lambda: _publish(staged, target, manifest) if rank == 0 else None)
        except BaseException as error:  # each rank clears up: the first one may be gone
            _give_up(staged, target)
            published = _identity(target)
            if isinstance(error, FileError) and seen and published and os.path.samestat(seen, published):
                return  # a rank went after that: what needs it next says so
            raise


@dataclass(frozen=True)
class RankPart:
    """What one rank loads of a folder.

    Attributes:
        file: The file of its program.
        manifest: What the folder holds.
        digest: Of the manifest.
        rank: The rank.
        ranks: Of all processes of the model, as the whole job counts them.
    """

    file: FileOfFolder
    manifest: Manifest
    digest: str
    rank: int
    ranks: Ranks

    @classmethod
    def find(cls, directory: str, mesh: Any, group: Any) -> RankPart:
        """Finds the part of this process in a folder that `save_sharded` wrote.

        Args:
            directory: The folder.
            mesh: The device mesh that the model is to run on; None where nobody says.
            group: The process group of all ranks of the model; all of them by default.

        Raises:
            PlanError: The folder is incomplete or damaged, or was saved for another number of processes or another
                mesh.
            OSError: It cannot be read.
        """
        folder = Folder.open(directory)
        text = read_file(folder.file(MANIFEST), _MAX_BYTES)
        manifest = Manifest.from_json(text, directory)
        rank, world = _rank_and_world(group)
        if world != manifest.world_size:
            raise PlanError(
                f"the model was compiled for {manifest.world_size} processes, and here are {world}",
                where=directory,
                why="" if _has_groups() else "this process has no process groups, and counts as one alone",
                hint=f"start {manifest.world_size} processes, as with torchrun --nproc-per-node={manifest.world_size}, "
                "and call torch.distributed.init_process_group in each; or shard and compile the model again",
            )
        here = _ranks_of(group)
        if manifest.ranks and manifest.groups and here != manifest.ranks:
            raise PlanError(
                f"the model communicates as the ranks {show_ranks(manifest.ranks)}, and here are {show_ranks(here)}",
                where=directory,
                hint="compile and save it on the ranks that are to run it; or save the models of all ranks in one "
                "folder, without group=",
            )
        wanted = None if mesh is None else Mesh.of(mesh)
        if wanted is not None and wanted != manifest.mesh:
            known = "no mesh" if manifest.mesh is None else f"the mesh {manifest.mesh}"
            raise PlanError(
                f"the model was saved with {known}, and here is the mesh {wanted}",
                where=directory,
                hint="make the mesh as it was, or shard and compile the model again",
            )
        _require_same_order(manifest, directory)
        file = folder.file(manifest.programs[rank].file)
        try:
            folder.status(file.name)
        except FileNotFoundError as error:
            raise PlanError(
                "the program of a rank is missing", where=str(file), hint="copy the whole folder again"
            ) from error
        return cls(file, manifest, hashlib.sha256(text).hexdigest(), rank, here)

    def check(self, content: Any) -> None:
        """Refuses bytes that are not those of this rank's program: what is loaded is what was looked at.

        Raises:
            PlanError: They have another length or digest than the manifest says.
        """
        program, size = self.manifest.programs[self.rank], len(content)
        if size != program.size or hashlib.sha256(content).hexdigest() != program.sha256:
            raise PlanError(
                "the program of a rank is not the one that the manifest describes",
                where=str(self.file),
                why="its digest differs"
                if size == program.size
                else f"it has {size} bytes, the manifest says {program.size}",
                hint="copy the whole folder again",
            )

    def finish(self, module: nn.Module) -> nn.Module:
        """Lets a loaded program make sure, before its first call, that all ranks have loaded the same folder.

        Raises:
            PlanError: The program says that it is another one than the manifest says.
        """
        meta: dict[str, Any] = getattr(module, "meta", {})
        collectives = self.manifest.programs[self.rank].collectives
        wanted = _said_of(self.rank, self.manifest.world_size, collectives)
        found = meta.get(RANK, wanted)
        if found != wanted:
            raise PlanError(
                "the program of a rank is not the one that the manifest describes",
                where=str(self.file),
                why=f"it was saved for {found:.120}, and the manifest gives it to {wanted}",
                hint="files were exchanged, or the manifest was changed: copy the whole folder again from where it was "
                "saved",
            )
        module.meta = {**meta, "manifest": self.manifest}  # type: ignore[assignment]
        groups = [tuple(self.ranks[place] for place in places) for places in collectives]
        compare_at_first_call(module, dict.fromkeys(groups, self.digest + meta.get(SAVE, "")))
        return module


def holds_manifest(directory: str) -> bool:
    """Whether a folder is a sharded model."""
    return os.path.isfile(os.path.join(directory, MANIFEST))


def digests_of(collectives: Iterable[Any]) -> dict[Ranks, str]:
    """Returns a digest of what a program communicates in each group of ranks: operators, in order, terms and bytes.

    Args:
        collectives: Reports of nodes with a `communication`, in the order in which they run.
    """
    moved = ((node.op, node.communication) for node in collectives)
    return digests_of_calls((each.ranks, op, each.terms, each.sent_bytes) for op, each in moved)


def digests_of_calls(calls: Iterable[tuple[Ranks, str, str, int]]) -> dict[Ranks, str]:
    """The same for the ranks, the operator, the terms (`terms_of`) and the bytes of each collective."""
    told: dict[Ranks, list[Any]] = {}
    for ranks, op, terms, size in calls:
        is_even = "all_to_all" not in op  # else each rank may give and take other amounts
        told.setdefault(ranks, []).append([op, terms, size if is_even else 0])
    return {
        ranks: hashlib.sha256(json.dumps(said).encode()).hexdigest() for ranks, said in told.items() if len(ranks) > 1
    }


def compare_at_first_call(module: nn.Module, digests: Mapping[Ranks, str]) -> None:
    """Lets a module compare digests with the other ranks of each group before its first call.

    Where process groups are made anew this is the first call with them: other processes may have come.

    Args:
        module: What this rank has.
        digests: What has to be equal among ranks.
    """
    if not digests:
        return

    compared = Compared()

    def compare(_: nn.Module, __: Any) -> None:
        if torch.compiler.is_compiling() or compared.here()[""]:
            return
        compare_ranks(digests)
        compared.here()[""] += 1

    module.register_forward_pre_hook(compare)


def compare_ranks(digests: Mapping[Ranks, str]) -> None:
    """Compares digests with the other ranks of each group, each of which calls this.

    Raises:
        ExecutionError: A rank has another digest, or none within the time limit of the process groups.
    """
    for ranks in sorted(digests):
        require_same_programs(ranks, digests[ranks])


def compare_new(digests: Mapping[Ranks, str], note: str = "", code: str = "") -> None:
    """Compares those digests of a call with the other ranks' that no call before it has had.

    Ranks that communicate alike come to new digests at the same call, whatever else each of them compiles anew.

    Raises:
        ExecutionError: A rank has another digest, has failed, or has none within the time limit of the process groups.
    """
    if code in _uncompiled:
        return
    new = _not_agreed(digests)
    for ranks in sorted(new):
        if require_same_programs(ranks, new[ranks], note, code):
            _agreed.here()[ranks, new[ranks]] += 1


def tell_failure(digests: Mapping[Ranks, str], error: Exception, code: str = "") -> None:
    """Tells the other ranks, in place of what `compare_new` compares, that this one does not come, and why."""
    if code in _uncompiled:
        return
    for ranks in sorted(_not_agreed(digests)):
        with contextlib.suppress(ExecutionError):  # nobody is there to hear it; the error at hand says more
            _say(ranks, "", f"{type(error).__name__}: {error}", code)


def leave_uncompiled(code: str, why: str, *, may_agree: bool) -> None:
    """Tells all ranks that PyTorch runs code of this one without a compiler from here on: it compares nothing of it.

    Args:
        code: What it is called on every rank.
        why: Why PyTorch does not capture it.
        may_agree: Whether it did before. It goes on to communicate as it did then, so that nobody waits for it any
            more; else those that compare the code get an error, since nothing says that this rank communicates alike.
    """
    import torch.distributed as dist

    if not _has_groups() or dist.get_world_size() < 2 or _is_played(None):
        return
    from trt_runtime.internals import default_store

    _uncompiled[code] = may_agree
    said, place = f"{_LEFT if may_agree else ''}\n{why:.{_MOST_SAID}}", _place_of_code(dist.get_rank(), code)
    with contextlib.suppress(RuntimeError, TimeoutError):  # the process that keeps it is gone: others hear that, too
        in_time(default_store(), lambda: default_store().set(place, said))


def capture_again(code: str) -> None:
    """Takes back that code runs without a compiler: PyTorch is about to capture it, after an error or from scratch."""
    import torch.distributed as dist

    if _uncompiled.pop(code, None) is not None and _has_groups():
        from trt_runtime.internals import default_store

        with contextlib.suppress(RuntimeError, TimeoutError):
            in_time(default_store(), lambda: default_store().delete_key(_place_of_code(dist.get_rank(), code)))


_LEFT: Final = "left"
_uncompiled: Final[dict[str, bool]] = {}  # code that PyTorch runs without a compiler, and whether ranks agreed on it


def _place_of_code(rank: int, code: str) -> str:
    return f"trt/uncompiled/{rank}/{code}"


def _not_agreed(digests: Mapping[Ranks, str]) -> dict[Ranks, str]:
    return {ranks: digest for ranks, digest in digests.items() if not _agreed.here()[ranks, digest]}


def _say(ranks: Ranks, digest: str, note: str, code: str = "") -> Any:
    """Writes what this rank has for its next comparison, nothing where it has failed, with a note for the others.

    Returns:
        The store; None where there is nobody to compare with.
    """
    import torch.distributed as dist

    if not dist.is_initialized() or _is_played(None):
        return None
    from trt_runtime.internals import default_store

    store, said, heard, rank = default_store(), _said.here(), _heard.here(), dist.get_rank()
    said[ranks] += 1
    place = _place(ranks, said[ranks], rank)
    for other in ranks:
        heard[ranks, other] += 1
    _ask(store, lambda: store.set(place, f"{digest}\n{code}\n{note:.{_MOST_SAID}}"), ranks)
    return store


def _take_back(store: Any, ranks: Ranks) -> None:
    """Lets a comparison be none to which a rank did not come: the next one is the next of all ranks."""
    import torch.distributed as dist

    said, heard = _said.here(), _heard.here()
    with contextlib.suppress(RuntimeError, TimeoutError):  # the store is gone: nobody reads it
        in_time(store, functools.partial(store.delete_key, _place(ranks, said[ranks], dist.get_rank())))
    said[ranks] -= 1
    for other in ranks:
        heard[ranks, other] -= 1


def _place(ranks: Ranks, number: int, rank: int) -> str:
    """Where a rank of a group says what it has for one of its comparisons."""
    return f"trt/{'-'.join(map(str, ranks))}/{number}/{rank}"


def require_same_programs(ranks: Ranks, digest: str, note: str = "", code: str = "") -> bool:
    """Compares a digest with those of other ranks, each of which calls this.

    Args:
        ranks: The ranks of a process group, of which this process is one.
        digest: What has to be equal.
        note: What this rank has, for those that have another one: `graph ends at a graph break`.
        code: Of what the graph was captured, which other ranks may run without a compiler.

    Returns:
        Whether all of them have it; some may run the code without a compiler, after they agreed on what it does.

    Raises:
        ExecutionError: A rank has another digest, has failed, or has none within the time limit of the process groups.
    """
    import torch.distributed as dist

    store, rank = _say(ranks, digest, note, code), dist.get_rank() if dist.is_initialized() else 0
    if store is None:
        return True
    is_everybody = True
    for other in ranks:
        if other == rank:
            continue
        answer = _hear(store, ranks, other, code)
        if answer is None:
            is_everybody = False
            continue
        found, told = answer
        if not found:
            raise ExecutionError(
                f"rank {other} failed in the same call of the model, before it communicated",
                where=f"the ranks {show_ranks(ranks)}",
                why=told,
                hint="see what that rank says",
            )
        if found != digest:
            notes = [f"; rank {who}'s {text}" for who, text in ((rank, note), (other, told)) if text]
            raise ExecutionError(
                f"rank {other} runs another program than rank {rank}",
                where=f"the ranks {show_ranks(ranks)}",
                why="they would not communicate in the same order, or not the same reductions, types or amounts"
                + "".join(notes),
                hint="compile or load the same model with the same settings and sizes on every rank",
            )
    return is_everybody


def _hear(store: Any, ranks: Ranks, other: int, code: str) -> tuple[str, str] | None:
    """Waits for what another rank says for its next comparison, and returns its digest and its note.

    What it said of code that both had agreed on, and this rank runs without a compiler since, is passed over: it did
    not wait for this rank there.

    Returns:
        None where it runs the code without a compiler, and has communicated as this rank does before.

    Raises:
        ExecutionError: It runs the code without a compiler, or says nothing within the time limit; or this rank does,
            and the other one captured it.
    """
    import torch.distributed as dist

    heard, left = _heard.here(), _place_of_code(other, code) if code else ""
    while True:
        place = _place(ranks, heard[ranks, other], other)
        try:
            answer = _ask(store, functools.partial(said_in, store, place, left), ranks).decode(errors="replace")
        except SaidElsewhere:
            heard[ranks, other] -= 1  # it has said nothing here
            told = _ask(store, functools.partial(store.get, left), ranks)
            kind, _, why = told.decode(errors="replace").partition("\n")
            if kind == _LEFT:
                return None
            raise _not_captured(code, other, ranks, why) from None
        except NothingSaid as error:
            given_up = _given_up.here()
            given_up[ranks] += 1
            call = f"{place.rpartition('/')[0]}, {given_up[ranks]}"  # numbers of calls that were taken back come again
            _leave_last(store, call, [each for each in ranks if each != other])
            _take_back(store, ranks)
            raise ExecutionError(
                f"rank {other} did not come to the same call of the model",
                where=f"the ranks {show_ranks(ranks)}",
                why=f"nothing was heard of it within the time limit of the process groups: {error}",
                hint="see what that rank says: it has failed, is gone, runs another program or with other sizes, or "
                "runs this code without a compiler, as PyTorch does after too many recompilations",
            ) from error
        digest, _, rest = answer.partition("\n")
        its_code, _, note = rest.partition("\n")
        if not _uncompiled.get(its_code, True):
            raise _not_captured(its_code, dist.get_rank(), ranks, "it leaves the code, or parts of it, to Python")
        if its_code not in _uncompiled:
            return digest, note
        heard[ranks, other] += 1


def _not_captured(code: str, rank: int, ranks: Ranks, why: str) -> ExecutionError:
    return ExecutionError(
        f"PyTorch has not captured {code} on rank {rank}, and has on others, which wait to compare it",
        where=f"the ranks {show_ranks(ranks)}",
        why=why,
        hint="let all ranks run the same code, of a form that PyTorch captures",
    )


def _leave_last(store: Any, place: str, ranks: Sequence[int]) -> None:
    """Lets the first rank go when the others have given up too: it may keep the store, which they ask who is missing.

    Args:
        store: The store.
        place: What the call is called there.
        ranks: Those that came, or may have.
    """
    import torch.distributed as dist

    with contextlib.suppress(RuntimeError):  # the store is gone: there is nothing to keep
        store.set(f"{place}/{dist.get_rank()} gives up", b"")
        end = time.monotonic() + _SECONDS_TO_GIVE_UP
        while dist.get_rank() == 0 and time.monotonic() < end:
            if store.check([f"{place}/{rank} gives up" for rank in ranks]):
                return
            time.sleep(0.05)


class SaidElsewhere(Exception):
    """A process has written to another place of a store than the one that was waited for."""


class NothingSaid(TimeoutError):
    """A process has written nothing to a store in time; the one that keeps the store is there."""


def _ask(store: Any, ask: Callable[[], _T], ranks: Ranks) -> _T:
    """Asks the store for something, or tells it, as `in_time` does.

    Raises:
        NothingSaid: What was asked for did not come.
        ExecutionError: Nobody keeps the store any more.
    """
    try:
        return in_time(store, ask)
    except NothingSaid:
        raise
    except (RuntimeError, TimeoutError) as error:
        raise ExecutionError(
            "the process that keeps the store of the process groups is gone, or stopped",
            where=f"the ranks {show_ranks(ranks)}",
            why=f"they could not compare what they are about to communicate: {error}",
            hint="see what the first rank says, which keeps the store where no launcher does",
        ) from error


def in_time(store: Any, ask: Callable[[], _T]) -> _T:
    """Asks a store of `torch.distributed`, and gives up where the process that keeps it is stopped: PyTorch does not.

    Raises:
        RuntimeError: The store is gone, with the process that keeps it.
        TimeoutError: No answer came within the time limit of the store, which is that of the process groups.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(ask())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    limit = store.timeout.total_seconds()
    wait([found], limit + 1)  # `said_in` gives up at the limit, and says more
    if not found.done():
        raise TimeoutError(f"the process that keeps the store has not answered within {limit:g} s")
    return found.result()


def said_in(store: Any, place: str, instead: str = "") -> bytes:
    """Waits for what another process writes to a store of `torch.distributed`, and returns it.

    It asks again and again: a store that waits by itself lets nobody else of this process ask meanwhile.

    Args:
        store: The store.
        place: Where the other one writes.
        instead: Where it has written before, if it does not mean to write there; it is asked for at every turn.

    Raises:
        SaidElsewhere: It has written there instead.
        RuntimeError: The store is gone, with the process that keeps it.
        TimeoutError: Nothing came within the time limit of the store.
    """
    limit = store.timeout.total_seconds()
    end, pause = time.monotonic() + limit, 0.001
    while True:
        is_said = store.check([place])  # before: whoever writes to both places writes to the other one first
        if instead and store.check([instead]):
            raise SaidElsewhere(instead)
        if is_said:
            found: bytes = store.get(place)
            return found
        if time.monotonic() > end:
            raise NothingSaid(f"nothing came within {limit:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


class _Together:
    """What ranks do in step, so that a failure of one of them is one of all.

    Args:
        group: The process group.
        world: Its size.
        target: What they save.
    """

    def __init__(self, group: Any, world: int, target: Path) -> None:
        self._group, self._world, self._target = group, world, target

    def each(self, work: Any) -> list[Any]:
        """Runs something on every rank and returns what each of them returned.

        Raises:
            FileError: A rank failed, or is gone.
        """
        own: BaseException | None = None
        try:
            with explaining_no_room("the model", self._target):
                told: tuple[bool, Any] = (True, work())
        except Exception as error:
            own, told = error, (False, f"{type(error).__name__}: {error}")
        found = self._exchange(told)
        if own is not None:
            raise own
        failed = [f"rank {rank}: {what}" for rank, (is_done, what) in enumerate(found) if not is_done]
        if failed:
            raise FileError(
                "another rank could not save its part", why="; ".join(failed), hint="see what that rank says"
            )
        return [what for _, what in found]

    def _exchange(self, value: Any) -> list[Any]:
        if self._world == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self._world
        try:
            dist.all_gather_object(found, value, group=self._group)
        except RuntimeError as error:
            raise FileError(
                "the model was not saved: a rank is gone", why=str(error), hint="see what the other ranks say"
            ) from error
        return found


def _require_same_folder(staged: Path, name: str, target: Path, rank: int) -> None:
    """Refuses to write for a rank that cannot see what the first one has made, or was told to save another folder.

    Args:
        staged: What the first rank has made, beside what it saves.
        name: What that is called.
        target: What this rank was told to save.
        rank: This rank.

    Raises:
        FileError: This rank does not see it.
        InputError: It was told to save another one.
    """
    if not staged.is_dir():
        raise FileError(
            f"rank {rank} does not see the folder that rank 0 has made",
            where=str(staged),
            hint="save to a file system that all ranks see",
        )
    if name != target.name or not target.parent.is_dir() or not target.parent.samefile(staged.parent):
        raise InputError(
            f"rank {rank} was told to save another folder than rank 0",
            where=str(target),
            why=f"rank 0 saves {staged.with_name(name)}",
            hint="name one folder on all ranks: each finds its program in it",
        )


def _write_part(
    compiled: nn.Module, folder: Path, rank: int, members: Ranks, model: str
) -> tuple[RankProgram, Mapping[str, Ranks]]:
    from trt_runtime.program.loaded_program import LoadedProgram
    from trt_runtime.program.saving import save

    collectives, groups = _communication_of(compiled, rank, members)
    path = folder / f"rank-{rank}.trtp"
    meta = compiled.meta if isinstance(compiled, LoadedProgram) else {}
    kept = {name: text for name, text in meta.items() if isinstance(text, str)}
    save(compiled, path, metadata={**kept, RANK: _said_of(rank, len(members), collectives), SAVE: model})
    with opened(path) as file:
        return RankProgram(path.name, path.stat().st_size, _digest_of(file), collectives), groups


def _said_of(rank: int, world: int, collectives: Mapping[Ranks, str]) -> str:
    """What the file of a rank says of itself, as text that is compared."""
    told = json.dumps(sorted((list(ranks), digest) for ranks, digest in collectives.items()))
    return f"rank {rank} of {world} with the collectives {hashlib.sha256(told.encode()).hexdigest()}"


def _communication_of(
    compiled: nn.Module, rank: int, members: Ranks
) -> tuple[Mapping[Ranks, str], Mapping[str, Ranks]]:
    """What a model communicates in each group, and the names of the groups; ranks are places among `members`.

    Raises:
        InputError: It communicates with others.
    """
    meta = getattr(compiled, "meta", {})
    report = meta.get("partition_report")
    if report is None:
        manifest = meta.get("manifest")  # of one that was loaded from a folder
        return (manifest.programs[rank].collectives, manifest.groups) if isinstance(manifest, Manifest) else ({}, {})

    def places(ranks: Ranks) -> Ranks:
        if outside := {*ranks} - {*members}:
            raise InputError(
                f"the model communicates with the ranks {show_ranks(sorted(outside))}, which do not save it",
                hint="name a process group of all its ranks, or none",
            )
        return tuple(members.index(each) for each in ranks)

    told = [node.communication for node in report.collectives if len(node.communication.ranks) > 1]
    digests = {places(ranks): digest for ranks, digest in digests_of(report.collectives).items()}
    return digests, {each.group: places(each.ranks) for each in told}


@contextlib.contextmanager
def _new_folder_for(target: Path) -> Iterator[str]:
    """Makes an empty folder beside a target, and keeps it from those who clear up; yields its path.

    What savers left that were killed with all their ranks goes: nobody holds its lock. So does the folder in the end,
    unless it was published.

    Raises:
        InputError: The target is a file.
        OSError: There is no making a folder there.
    """
    if target.exists() and not target.is_dir():
        raise InputError("a sharded model is a folder, and this is a file", where=str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in leftovers(target.parent, target.name, MANIFEST):
        with contextlib.suppress(OSError):
            _clear_up(path, target)
    with contextlib.ExitStack() as held:
        give_up = functools.partial(_give_up, target=target)
        yield str(locked_folder(target.parent, target.name, MANIFEST, held, give_up))


def _clear_up(left: Path, target: Path) -> None:
    """Removes what a killed saver left; a model that it had only moved out of the way gets its place back."""
    if left.name.endswith(_OLD) and not target.exists():
        left.rename(target)
    else:
        take_away(left)


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Yields the descriptor of a folder or a file, to make it last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _publish(staged: Path, target: Path, manifest: Manifest) -> None:
    """Makes a complete folder the one that readers see, unless a rank has given up: of their renamings one succeeds."""
    (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    for path in (staged / MANIFEST, staged):
        with opened_folder(path) as descriptor:
            os.fsync(descriptor)
    old = _old_of(staged)
    if target.exists():
        target.rename(old)
    try:
        staged.rename(target)
    except OSError:  # the other ranks have given up
        _put_back(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _give_up(staged: Path, target: Path) -> None:
    """Removes a folder, unless it was published. It is moved away first: from then on nobody can publish it."""
    with contextlib.suppress(OSError):  # another rank was faster
        take_away(staged)
        _put_back(_old_of(staged), target)


def _old_of(staged: Path) -> Path:
    """Where an old model waits while the new one takes its place."""
    return staged.with_name(f"{staged.name}{_OLD}")


def _put_back(old: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # there was none, or another rank was faster
        old.rename(target)


def _identity(folder: Path) -> os.stat_result | None:
    """What tells a folder from others, whatever its name; None where it is not there."""
    try:
        return folder.stat()
    except OSError:
        return None


def _require_same_order(manifest: Manifest, where: str) -> None:
    """Refuses programs that would wait for each other.

    Raises:
        PlanError: Two ranks of a group communicate differently.
    """
    for rank, program in enumerate(manifest.programs):
        for ranks, digest in program.collectives.items():
            others = [other for other in ranks if manifest.programs[other].collectives.get(ranks) != digest]
            if others:
                raise PlanError(
                    f"the programs of the ranks {rank} and {others[0]} do not fit together",
                    where=where,
                    why=f"in the group of the ranks {show_ranks(ranks)} they communicate in another order, or other "
                    "amounts",
                    hint="compile the same model with the same settings and sizes on every rank",
                )


def _digest_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 22):
        digest.update(piece)
    return digest.hexdigest()


def _is_played(group: Any) -> bool:
    """Whether the other ranks of a group are not there, as in a dry run: nobody answers for them."""
    import torch.distributed as dist

    return str(dist.get_backend(group)) == "fake"


def _has_groups() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _ranks_of(group: Any) -> Ranks:
    """The ranks of a group, as the whole job counts them."""
    import torch.distributed as dist

    if not _has_groups():
        return (0,)
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def _rank_and_world(group: Any) -> tuple[int, int]:
    """Rank and number of ranks in a group; a process without groups is alone.

    Raises:
        InputError: This process is no member of the group, or it is none.
    """
    import torch.distributed as dist

    if not _has_groups():
        return 0, 1
    try:
        rank = dist.get_rank(group)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{kind_of(group)} is no process group that this process knows",
            why=str(error),
            hint="give what torch.distributed.new_group or a device mesh returns",
        ) from error
    if rank < 0:
        raise InputError("this process does not belong to the group")
    return rank, dist.get_world_size(group)
