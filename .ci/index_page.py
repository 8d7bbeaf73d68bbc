"""The page of the package index: README.md with absolute links, because an index has no other files of the checkout."""

import re

# A link to a file of the checkout: neither an address nor a place on the page itself.
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>(?![a-z]+:|#)[^)\s]+)\)")
# Where a hoster shows a file of the newest state.
_FILES = "blob/main"


def index_page(readme: str, sources: str) -> str:
    """Return README.md as the page of a package index.

    Args:
        readme: README.md, with links relative to its place in the checkout.
        sources: The address of the published checkout; empty where there is none, and links become their texts.
    """
    return _LINK.sub(rf"[\g<text>]({sources}/{_FILES}/\g<path>)" if sources else r"\g<text>", readme)


def project_urls(sources: str) -> dict[str, str]:
    """Return the addresses that an index shows beside the page."""
    if not sources:
        return {}
    files = f"{sources}/{_FILES}"
    return {
        "Source": sources,
        "Documentation": f"{files}/docs/guides/quickstart.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{sources}/issues",
    }
