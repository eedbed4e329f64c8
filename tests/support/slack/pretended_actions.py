"""A server behind the buttons that writes down what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stabilityalerting import ActionRefused, Branch, CommandNews, Curve, Facts, Proposed, RollbackNow, RollbackRequest

__all__ = ["PretendedActions"]


@dataclass
class PretendedActions:
    """Answers as its fields say."""

    offers_mute: bool = False
    shown: Facts = field(
        default_factory=lambda: Facts(
            "night run",
            "vision",
            Curve("loss", [Branch(range(90, 111), [2.0] * 10 + [3.0] * 11)], 100, (110, 3.0)),
            True,
        )
    )
    now: RollbackNow = field(
        default_factory=lambda: RollbackNow(
            2,
            "key-2",
            120,
            50,
            "/ckpt/50",
            0.0,
            ["the learning rate of its schedule x 0.5"],
            [],
            "It is good.",
            ranks=8,
        )
    )
    acknowledged: list[tuple[str, str, str]] = field(default_factory=list)
    noted: list[tuple[str, str, str, str]] = field(default_factory=list)
    muted: list[tuple[str, str, int, str]] = field(default_factory=list)
    orders: list[RollbackRequest] = field(default_factory=list)
    proposed: Proposed | None = None
    decided: list[tuple[str, str, str, str]] = field(default_factory=list)
    rated: list[tuple[str, bool, str]] = field(default_factory=list)
    holder: str = ""
    refuse: str = ""
    news: CommandNews = field(default_factory=lambda: CommandNews("c-1", "pending", "Requested"))

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        return self.shown

    async def acknowledge(self, run_id: str, incident_id: str, who: str, detail: str) -> str:
        self.holder = self.holder or who
        self.acknowledged.append((run_id, incident_id, who))
        return self.holder

    async def note(self, run_id: str, incident_id: str, action: str, who: str, detail: str) -> None:
        self.noted.append((incident_id, action, who, detail))

    async def mute(self, run_id: str, incident_id: str, minutes: int, who: str, reason: str, person: str) -> float:
        self.muted.append((run_id, incident_id, minutes, who))
        return 1_700_003_600.0

    async def rate(self, run_id: str, incident_id: str, useful: bool, who: str, person: str) -> None:
        self.rated.append((incident_id, useful, who))

    async def rollback_now(self, run_id: str, incident_id: str) -> RollbackNow:
        return self.now

    async def roll_back(self, request: RollbackRequest) -> CommandNews | Proposed:
        if self.refuse:
            raise ActionRefused(self.refuse)
        self.orders.append(request)
        return self.proposed or self.news

    async def approve(self, run_id: str, proposal_id: str, who: str, person: str) -> CommandNews:
        self.decided.append(("approved", proposal_id, who, person))
        return self.news

    async def decline(self, run_id: str, proposal_id: str, who: str, person: str) -> None:
        self.decided.append(("declined", proposal_id, who, person))

    async def command(self, run_id: str, command_id: str) -> CommandNews | None:
        return self.news

    def tell(self, state: str, line: str, problem: str = "", *, ended: bool = False, failed: bool = False) -> None:
        """The command has come so far."""
        self.news = replace(self.news, state=state, line=line, problem=problem, ended=ended, failed=failed)
