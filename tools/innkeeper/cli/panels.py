"""Help in groups: a command of many options shows them under headings.

Typer shows its own groups (`rich_help_panel`) only with boxes around them; this is for the
plain help that all our commands have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Row = tuple[str, str]

ARGUMENTS = "Arguments"
REST = "Options"
"""The heading of what is under no other."""


class GroupedCommand(TyperCommand):
    """Headings in their order; what is named under none comes last."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names of parameters."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for heading, rows in self._sections(ctx, self.get_params(ctx)).items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def _sections(self, ctx: Any, params: Iterable[Any]) -> dict[str, list[Row]]:
        under = {name: heading for heading, names in self.headings.items() for name in names}
        found: dict[str, list[Row]] = {name: [] for name in (ARGUMENTS, *self.headings, REST)}
        for param in params:
            row = param.get_help_record(ctx)
            if row is not None:
                is_argument = param.param_type_name == "argument"
                found[ARGUMENTS if is_argument else under.get(param.name, REST)].append(row)
        return {heading: rows for heading, rows in found.items() if rows}
