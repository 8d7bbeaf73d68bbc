"""Put the page of the package index and the project's addresses into the metadata; .ci/index_page.py makes them."""

import runpy
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class IndexPage(MetadataHookInterface):
    """The fields `readme` and `urls`."""

    def update(self, metadata: dict[str, object]) -> None:
        """Set both fields; `sources` in pyproject.toml says where the files of the checkout are published."""
        root, sources = Path(self.root), str(self.config.get("sources", "")).rstrip("/")
        page = runpy.run_path(str(root / ".ci/index_page.py"))
        text = page["index_page"]((root / "README.md").read_text(), sources)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = page["project_urls"](sources)
