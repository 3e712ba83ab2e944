"""Filesystems: what is free on each, and what all stages together want of it."""

import resource
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.system.disk import existing_parent, free_bytes, reserve_bytes
from tasks.system.plan.needs import Need


@dataclass(frozen=True)
class Volume:
    """A filesystem."""

    path: Path
    """A folder on it."""
    free_bytes: int
    reserve_bytes: int
    """Is to stay free."""
    device: int
    """The system's number of it: equal for two folders on one filesystem, bind mounts included."""
    basis: str

    @property
    def usable_bytes(self) -> int:
        """Free space less the reserve."""
        return max(0, self.free_bytes - self.reserve_bytes)


@dataclass(frozen=True)
class Space:
    """Where a run writes: on the filesystems of this machine, or on a volume that is only described."""

    reserve_share: float
    described: Volume | None = None
    """Everything is on it; None asks the system."""

    def volume_of(self, path: Path) -> Volume:
        """The filesystem that ``path`` is on, or will be."""
        if self.described is not None:
            return self.described
        parent = existing_parent(path)
        reserve = reserve_bytes(parent, self.reserve_share)
        return Volume(parent, free_bytes(parent), reserve, parent.stat().st_dev, "free now")


def described_space(path: Path, free: int, reserve_share: float, basis: str) -> Space:
    """A volume with so much free space; its reserve is taken from that, for want of its size."""
    return Space(reserve_share, Volume(path, free, int(free * reserve_share), 0, basis))


@dataclass(frozen=True)
class VolumeNeeds:
    """All that is going to be written on one filesystem."""

    volume: Volume
    needs: list[Need]

    @property
    def need_bytes(self) -> int:
        """All stages together."""
        return sum(need.need_bytes for need in self.needs)

    @property
    def fits(self) -> bool:
        """Whether need and reserve fit into what is free."""
        return self.need_bytes + self.volume.reserve_bytes <= self.volume.free_bytes


def by_volume(needs: Iterable[Need], space: Space) -> list[VolumeNeeds]:
    """The needs of all stages by filesystem, several roots on one counted together."""
    found: dict[int, VolumeNeeds] = {}
    for need in needs:
        volume = space.volume_of(need.path)
        group = found.get(volume.device, VolumeNeeds(volume, []))
        found[volume.device] = replace(group, needs=[*group.needs, need])
    return list(found.values())


def room_bytes(path: Path, needs: Iterable[Need], space: Space) -> int:
    """What is left on the filesystem of ``path`` for states, when everything else is written; may be negative."""
    volume = space.volume_of(path)
    others = sum(need.need_bytes for need in needs if space.volume_of(need.path).device == volume.device)
    return volume.free_bytes - volume.reserve_bytes - others


def file_size_limit() -> int | None:
    """Bytes that this process may write into one file (RLIMIT_FSIZE); None: any number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit
