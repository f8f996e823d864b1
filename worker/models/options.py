"""A part's published `config.json`, read strictly: what is not understood is an error, never ignored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from worker.errors import CheckpointError


@dataclass(frozen=True)
class Option:
    """One option: the reference's default where a file lacks it, and which values are handled."""

    default: Any
    handled: Callable[[Any], bool]


def one_of(*values: Any) -> Option:
    """Exactly these values, the first by default."""
    return Option(values[0], lambda value: any(type(value) is type(v) and value == v for v in values))


def neutral(default: int | float) -> Option:
    """A number that is handled at its default alone."""
    return Option(default, lambda value: is_number(value) and value == default)


def is_flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def is_size(value: Any) -> bool:
    """An integer of at least one."""
    return isinstance(value, int) and not is_flag(value) and value >= 1


def is_number(value: Any) -> bool:
    """An integer or a float."""
    return isinstance(value, int | float) and not is_flag(value)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """A list, or a tuple in its place."""
    return isinstance(value, list | tuple)


def or_null(handled: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Null as well."""
    return lambda value: value is None or handled(value)


def each(handled: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A list, not empty, of such values."""
    return lambda value: is_list(value) and bool(value) and all(map(handled, value))


def single_or_each(handled: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """One such value for all levels, or a list with one for each."""
    return lambda value: handled(value) or each(handled)(value)


def read_options(
    part: str, raw: Mapping[str, Any], options: Mapping[str, Option], irrelevant: str = ""
) -> dict[str, Any]:
    """Return the value of every one of `options`.

    Names that begin with an underscore, and those in `irrelevant`, are passed over. Raises CheckpointError
    that names every option, with its value, that is unknown or set to what is not handled.
    """
    passed_over = irrelevant.split()
    given = {name: value for name, value in raw.items() if not name.startswith("_") and name not in passed_over}
    values = {name: given.get(name, option.default) for name, option in options.items()}
    problems = [f"{name} = {value!r} is unknown" for name, value in given.items() if name not in options]
    problems += [
        f"{name} = {value!r} is not handled" for name, value in values.items() if not options[name].handled(value)
    ]
    if problems:
        raise CheckpointError(f"configuration of {part}: {'; '.join(problems)}")
    return values


def per_level(part: str, name: str, value: Any, levels: int) -> tuple[Any, ...]:
    """Repeat a single value for every level; raises CheckpointError when a list has another length."""
    if not is_list(value):
        return (value,) * levels
    if len(value) != levels:
        raise CheckpointError(f"configuration of {part}: {name} = {value!r} must have {levels} values")
    return tuple(value)
