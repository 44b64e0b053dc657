"""What a run of the simulation came to: how much it did, and how often it was in the states that matter."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """A machine step is an effect performed, a call answered or a disturbance; invariants hold after each."""

    num_examples: int = 0
    num_steps: int = 0
    num_disturbances: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Sum up."""
        self.num_examples += other.num_examples
        self.num_steps += other.num_steps
        self.num_disturbances += other.num_disturbances
        self.events.update(other.events)

    def missing(self, wanted: dict[str, int]) -> list[str]:
        """The states that were reached less often than ``wanted`` says."""
        return [
            f"{name}: {self.events[name]} < {num}" for name, num in wanted.items() if self.events[name] < num
        ]

    def __str__(self) -> str:  # type: ignore[explicit-override]  # typing.override: 3.12
        return (
            f"{self.num_steps} machine steps in {self.num_examples} examples, "
            f"{self.num_disturbances} disturbances, {self.events['commits']} commits"
        )

    def table(self) -> list[str]:
        """One line an event, the rarest last."""
        return [f"{num:8d}  {name}" for name, num in self.events.most_common()]
