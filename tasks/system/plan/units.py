"""Figures for people: decimal units, three significant digits."""


def decimal_bytes(count: float) -> str:
    """5.40 TB, 540 GB, 12.0 MB, 0 B."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"), " ")


def decimal_count(count: float) -> str:
    """94.2M tokens, 190K tokens, 592."""
    return _scaled(count, ("", "K", "M", "G", "T"), "")


def _scaled(count: float, units: tuple[str, ...], gap: str) -> str:
    value, unit = float(count), units[0]
    for following in units[1:]:
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, following
    if unit == units[0]:
        return f"{count:.0f}{gap if unit else ''}{unit}"
    return f"{value:#.3g}".rstrip(".") + f"{gap}{unit}"


def dollars(costs: list[float]) -> str:
    """164 to 273 dollars."""
    low, high = f"{min(costs):,.0f}", f"{max(costs):,.0f}"
    return f"{low} dollars" if low == high else f"{low} to {high} dollars"


def readable_hours(seconds: float) -> str:
    """13.5 h, or 22 min under an hour, or 30 s under two minutes."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
