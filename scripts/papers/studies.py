"""Every study by its name, in the order of the page."""

from __future__ import annotations

from scripts.papers import drift, groups, settings
from scripts.papers.lines import Study
from scripts.papers.replays import PRODUCTION, SENSITIVITY

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *groups.STUDIES,
        PRODUCTION,
        *settings.STUDIES,
        *SENSITIVITY,
        *drift.STUDIES,
    )
}
