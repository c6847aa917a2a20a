"""The page to try models by hand, in Chromium."""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
import served_folders
from browser import CHROMIUM, Browser
from PIL import Image
from served_folders import CLASSES, Served, pixels_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

TOKEN = "0123456789abcdef"
ANSWER = "document.getElementById('answer').textContent"
CHOOSE_FILE = """(() => {
  const bytes = Uint8Array.from(atob('%s'), one => one.charCodeAt(0)), held = new DataTransfer();
  held.items.add(new File([bytes], 'x.png', {type: 'image/png'}));
  const input = document.getElementById('file');
  input.files = held.files;
  input.dispatchEvent(new Event('change'));
})()"""


EMPTY_TEXT = """(() => {
  models.get('pixels').parameters.generate = {};
  const event = {text_output: '', finish_reason: 'stop', tokens: 0};
  window.fetch = async () => new Response('data: ' + JSON.stringify(event) + '\\n\\n');
  send.click();
})()"""


def test_an_image_and_arrays_are_tried_by_hand(tmp_path: Path) -> None:
    folders = [served_folders.write_pixels(tmp_path / "pixels"), served_folders.write_ids(tmp_path / "ids")]
    image = np.random.default_rng(5).integers(0, 256, (4, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    expected = CLASSES[pixels_of(image[None, None])[0].argmax()]
    with Served(*folders, environment={"MXTRAIN_SERVE_TOKEN": TOKEN}) as served, \
            tempfile.TemporaryDirectory() as profile, Browser(Path(profile), 400) as page:  # fmt: skip
        page.open(served.url + "/")
        needed = "This server needs a token. Enter it in the field Token; whoever started the server has it."
        assert page.wait(ANSWER) == needed
        assert page.run("document.getElementById('token-field').open && document.activeElement === token")
        page.run("token.value = 'wrong', token.dispatchEvent(new Event('change'))")
        page.wait(f"{ANSWER}.startsWith('The server does not accept this token. Enter the right one')")
        page.run(f"token.value = '{TOKEN}', token.dispatchEvent(new Event('change'))")
        page.wait("document.querySelectorAll('option').length == 2")
        assert page.run("document.getElementById('by-text').hidden && !document.getElementById('by-file').hidden")
        page.run("send.click()")
        assert page.wait(ANSWER) == "Choose a file first."
        page.run(CHOOSE_FILE % base64.b64encode(file.getvalue()).decode())
        assert page.wait("!shown.hidden && shown.naturalWidth") == 4
        page.run("send.click()")
        page.wait(f"{ANSWER}.startsWith('{{')")
        assert page.run(f"JSON.parse({ANSWER})['class']") == expected
        page.run("model.value = 'ids', model.dispatchEvent(new Event('change'))")
        assert page.run("document.getElementById('by-file').hidden")
        assert page.run(f"file.files.length === 0 && shown.hidden && {ANSWER} === ''"), "nothing of the old model"
        page.run("text.value = '{\"ids\": [[3, 3]]}', send.click()")
        page.wait(f"{ANSWER}.includes('output')")
        found = page.run(f"JSON.parse({ANSWER}).output")
        np.testing.assert_allclose(found, served_folders.TABLE[3], atol=1e-6)
        page.run("text.value = '{\"ids\": [[<b>]]}', send.click()")
        assert "no JSON" in page.wait(f"document.querySelector('.failed') && {ANSWER}")
        page.run("""text.value = '{"ids": [[3, 3]]}', send.click(), model.value = 'pixels',
                 model.dispatchEvent(new Event('change'))""")  # before the answer
        assert page.wait("!send.disabled") and page.run(ANSWER) == ""
        page.run(EMPTY_TEXT)
        assert page.wait(ANSWER) == "No text: ended after 0 tokens."
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "fits a phone"
        assert page.errors == []
        elsewhere = [one for one in page.requests if not one.startswith((served.url, "about:", "data:", "blob:"))]
        assert elsewhere == []
