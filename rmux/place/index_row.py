"""One group as a decision reads it: its sums, its device sets and the memory that is left.

Made again from its members when the group changes, which touches no other group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmux.cluster import DeviceId
from rmux.group import CoExecGroup, Member, nodes_of
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Reason
from rmux.place.index_needs import Needs
from rmux.place.inventory import Inventory
from rmux.place.residency import switching_bytes

INFINITE = float("inf")


class Seat:
    """Rollout devices that members use together, and their seconds per round."""

    __slots__ = ("apart", "devices", "load_s", "nodes", "off_load_s", "usable")

    def __init__(self, devices: tuple[DeviceId, ...]) -> None:
        self.devices = devices
        self.nodes = nodes_of(devices)
        self.load_s = self.off_load_s = 0.0
        self.usable = True
        self.apart = True
        """Whether no other seat of the group has one of its devices."""


class Pack:
    """Rollout devices in the group that a job could get."""

    __slots__ = ("apart", "devices", "nodes", "seat")

    def __init__(self, devices: tuple[DeviceId, ...], seat: Seat | None, *, apart: bool) -> None:
        self.devices = devices
        self.nodes = seat.nodes if seat is not None else nodes_of(devices)
        self.seat = seat
        """The set that they are exactly."""
        self.apart = apart
        """Whether each set of the group would be equal to or disjoint from it."""


class Row:
    """Sums over the members, in seconds per round and bytes; `rank` is the group's place."""

    __slots__ = (
        "_group",
        "_packs",
        "_unused",
        "cap_s",
        "cycle_s",
        "desired",
        "free_bytes",
        "id",
        "least_load_s",
        "load_s",
        "members",
        "needs",
        "nodes",
        "overlapping",
        "plain",
        "rank",
        "refusal",
        "rollout_free",
        "rollout_load_s",
        "rollout_off_s",
        "rotation_version",
        "seat_of",
        "seats",
        "slot",
        "stock",
        "strict_cap_s",
        "train",
        "train_free",
        "train_load_s",
        "train_nodes",
        "train_off_s",
        "train_stock",
        "turns",
        "unused",
        "usable",
        "usable_nodes",
        "with_peaks",
    )

    def __init__(self, group: CoExecGroup, known: Inventory, *, rank: int) -> None:
        self.id: GroupId = group.id
        self.rank = rank
        self.slot = -1
        self.members: list[Member] = list(group.members)
        self.needs: list[Needs] = [Needs.of(member) for member in group.members]
        self.nodes: list[NodeId] = list(group.nodes)
        self.rotation_version, self.desired = group.rotation_version, group.desired
        self.turns: tuple[JobId, ...] = group.turns
        self._group: CoExecGroup | None = group
        self._packs: dict[int, list[Pack]] = {}
        self._unused: tuple[DeviceId, ...] | None = None
        if self.members:
            self.train = group.members[0].placement.train
            self.train_nodes = group.members[0].placement.train_nodes
            self.train_stock = known.stock_of(self.train[0].node)
            self.stock = known.stock_of(group.members[0].placement.rollout[0].node)
            self._sum_up(known)

    def changed(self, known: Inventory) -> None:
        """After `members`, `needs` or `nodes` changed."""
        self._group = None
        if self.members:
            self._sum_up(known)

    @property
    def group(self) -> CoExecGroup:
        if self._group is None:
            self._group = CoExecGroup(
                id=self.id,
                members=tuple(self.members),
                nodes=tuple(self.nodes),
                rotation_version=self.rotation_version,
                desired=self.desired,
                turns=self.turns,
            )
        return self._group

    def loads_least_s(self, count: int) -> float:
        """Smallest load of `count` devices that are a set already or unused; infinite if none."""
        if self.unused >= count:
            return 0.0
        loads = [s.load_s for s in self.seats if s.usable and len(s.devices) == count]
        return min(loads, default=INFINITE)

    def missing(self, count: int) -> int:
        """Devices that further nodes must bring, at least."""
        return count - self.unused if self.unused < count else count

    def packs(self, count: int) -> Sequence[Pack]:
        """Equal or unused devices first; later ones overlap in part and pay their true period."""
        found = self._packs.get(count)
        if found is None:
            found = self._packs[count] = list(self._generate(count))
        return found

    def unused_devices(self) -> tuple[DeviceId, ...]:
        """Devices of the same node together, the nodes that offer most first."""
        if self._unused is None:
            used = {device for seat in self.seats for device in seat.devices}
            by_node = [
                [device for device in node.devices if device not in used]
                for node in self.usable_nodes
            ]
            ranked = sorted(by_node, key=len, reverse=True)
            self._unused = tuple(device for devices in ranked for device in devices)
        return self._unused

    def _sum_up(self, known: Inventory) -> None:
        needs = self.needs
        self._packs, self._unused = {}, None
        self.cycle_s = max([each.solo_s for each in needs])
        self.strict_cap_s = min([each.cap_s for each in needs])
        self.cap_s = min([each.cap_s * each.repeats for each in needs])
        """No round can be longer, whoever runs several times in it."""
        self.train_load_s = sum([each.train_s for each in needs])
        self.train_off_s = self.train_load_s + sum([each.off_s for each in needs])
        self.plain = all(each.plain for each in needs)
        self.with_peaks = any(each.peak_bytes for each in needs)
        self._seat_members()
        self.overlapping = not all(s.apart for s in self.seats) or any(
            member.placement.train is not self.train and member.placement.train != self.train
            for member in self.members
        )
        self.rollout_load_s = max([s.load_s for s in self.seats])
        if self.overlapping:
            self.rollout_load_s = max(self._loads_s().values())
        self.rollout_off_s = max([s.off_load_s for s in self.seats])
        self.load_s = max(self.train_load_s, self.rollout_load_s)
        self._see_nodes(known)

    def _seat_members(self) -> None:
        self.seats: list[Seat] = []
        self.seat_of: list[Seat] = []
        for member, need in zip(self.members, self.needs, strict=True):
            devices = member.placement.rollout
            for seat in self.seats:
                if seat.devices is devices or seat.devices == devices:
                    break
            else:
                seat = self._seat(devices)
            seat.load_s += need.rollout_s
            seat.off_load_s += need.rollout_s + need.off_s
            self.seat_of.append(seat)

    def _seat(self, devices: tuple[DeviceId, ...]) -> Seat:
        """The seat with these devices in another order, or a new one."""
        seat = Seat(devices)
        for other in self.seats:
            if not set(other.nodes).isdisjoint(seat.nodes):
                common = set(other.devices) & set(devices)
                if len(common) == len(devices) == len(other.devices):
                    return other
                if common:
                    seat.apart = other.apart = False
        self.seats.append(seat)
        return seat

    def _see_nodes(self, known: Inventory) -> None:
        """What of the held nodes can take somebody, and how much memory is left on each."""
        self.refusal = None
        self.usable_nodes = []
        drained = False
        for node_id in self.nodes:
            node = known.node(node_id)
            if node.drained:
                drained = True
            elif node.pool == self.stock.name:
                self.usable_nodes.append(node)
        self.usable = sum([node.num_devices for node in self.usable_nodes])
        if drained:
            self._see_drained(known)
        if self.overlapping or drained:
            self.unused = len(self.unused_devices())
        else:
            self.unused = self.usable - sum([len(seat.devices) for seat in self.seats])
        if self.desired != "run" and self.refusal is None:
            self.refusal = Reason(code="down", message="the group is stopped (rmux group down)")
        self._see_memory(known)
        self.least_load_s = 0.0 if self.unused else self._least_load_s()

    def _see_drained(self, known: Inventory) -> None:
        usable = {node.id for node in self.usable_nodes}
        for seat in self.seats:
            seat.usable = usable.issuperset(seat.nodes)
        for node_id in self.train_nodes:
            if reason := known.node(node_id).drained:
                self.refusal = Reason(
                    code="drained", message=f"train node {node_id} is drained: {reason}"
                )
                return

    def _see_memory(self, known: Inventory) -> None:
        held = dict.fromkeys(self.nodes, 0)
        for member, need, seat in zip(self.members, self.needs, self.seat_of, strict=True):
            for node in seat.nodes:
                held[node] += need.rollout_bytes
            train = member.placement.train
            for node in self.train_nodes if train is self.train else nodes_of(train):
                held[node] += need.train_bytes
        self.free_bytes = {
            node: known.node(node).usable_memory_bytes - resident for node, resident in held.items()
        }
        """Per node, beside what is resident; switches are not taken off."""
        self.train_free = min([self.free_bytes[node] for node in self.train_nodes])
        self.rollout_free = max(
            [self.free_bytes[node.id] for node in self.usable_nodes], default=-1
        )

    def switching_bytes(
        self, node: NodeId, *, joining: tuple[Iterable[DeviceId], int] | None = None
    ) -> int:
        """Most that switches on the node at once, with one more job if given, bytes."""
        if not self.with_peaks and (joining is None or not joining[1]):
            return 0
        uses = [
            (member.placement.devices, need.peak_bytes)
            for member, need in zip(self.members, self.needs, strict=True)
        ]
        if joining is not None:
            uses.append((tuple(joining[0]), joining[1]))
        return switching_bytes(
            (frozenset(device for device in devices if device.node == node), peak)
            for devices, peak in uses
        )

    def _loads_s(self) -> dict[DeviceId, float]:
        loads: dict[DeviceId, float] = {}
        for seat in self.seats:
            for device in seat.devices:
                loads[device] = loads.get(device, 0.0) + seat.load_s
        return loads

    def _least_load_s(self) -> float:
        if not self.overlapping:
            return min([s.load_s for s in self.seats if s.usable], default=0.0)
        loads = self._loads_s()
        return min(
            [
                loads[device]
                for devices in [node.devices for node in self.usable_nodes]
                for device in devices
            ],
            default=0.0,
        )

    def _generate(self, count: int) -> Iterable[Pack]:
        seen: set[frozenset[DeviceId]] = set()
        for devices, seat in self._device_sets(count):
            chosen = frozenset(devices)
            if chosen in seen:
                continue
            seen.add(chosen)
            apart = not self.overlapping and (
                seat is not None or all(chosen.isdisjoint(s.devices) for s in self.seats)
            )
            yield Pack(devices, seat, apart=apart)

    def _device_sets(self, count: int) -> Iterable[tuple[tuple[DeviceId, ...], Seat | None]]:
        seats = [seat for seat in self.seats if seat.usable]
        yield from ((seat.devices, seat) for seat in seats if len(seat.devices) == count)
        if self.unused >= count:
            yield self.unused_devices()[:count], None
        # From here on sets overlap in part.
        if self.usable >= count:
            loads = self._loads_s()
            usable = [
                device
                for devices in [node.devices for node in self.usable_nodes]
                for device in devices
            ]
            least = sorted(usable, key=lambda device: loads.get(device, 0.0))[:count]
            yield tuple(sorted(least)), None
        yield from ((s.devices[:count], None) for s in seats if len(s.devices) > count)
        for index, left in enumerate(seats):
            for right in seats[index + 1 :]:
                together = left.devices + right.devices
                if len(together) == count and not set(left.devices) & set(right.devices):
                    yield together, None
