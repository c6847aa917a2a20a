"""The page to try models by hand, in Chromium."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest
import served_folders
from browser import CHROMIUM, Browser
from PIL import Image
from served_folders import CLASSES, Served, pixels_of

from mxtrain.vision.exported_images import coco_run_lengths
from mxtrain.vision.segmentation.mask_png import mask_png, palette

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
    with (
        Served(*folders, environment={"MXTRAIN_SERVE_TOKEN": TOKEN}) as served,
        Browser(tmp_path / "profile", 400) as page,
    ):
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
        assert page.wait("!bars.hidden") and page.run("drawn.hidden")
        share_3 = np.sort(pixels_of(image[None, None])[0])[::-1]
        widths = page.run("[...bars.querySelectorAll('i')].map(one => parseFloat(one.style.width))")
        assert page.run("bars.firstChild.textContent") == expected
        np.testing.assert_allclose(widths, 100 * share_3, atol=0.01)
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


def test_boxes_masks_and_points_are_drawn_over_the_image(tmp_path: Path) -> None:
    """Colours are read where the numbers of an answer say that something is."""
    mask_hw = np.zeros((20, 40), bool)
    mask_hw[3:9, 5:30] = mask_hw[12, 7] = True
    segments_hw = np.zeros((20, 40), np.uint8)
    segments_hw[:, 20:] = 1
    answers = {
        "found": {
            "found": [
                {
                    "class": "cat",
                    "score": 0.9,
                    "box": [4, 2, 35, 16],
                    "mask": {"size": [20, 40], "counts": coco_run_lengths(mask_hw)},
                }
            ]
        },
        "segments": {
            "height": 20,
            "width": 40,
            "shares": {"sky": 0.75, "sea": 0.25},
            "mask": base64.b64encode(mask_png(segments_hw, [0, 9])).decode(),
        },
        "points": {"score": 0.5, "box": [0, 0, 40, 20], "key_points": {"nose": [10, 5, 0.9], "tail": [30, 15, 0.8]}},
    }
    file = io.BytesIO()
    Image.fromarray(np.full((20, 40, 3), 255, np.uint8)).save(file, "PNG")
    with Served(served_folders.write_pixels(tmp_path / "pixels")) as served, Browser(tmp_path / "profile", 800) as page:
        page.open(served.url + "/")
        page.wait("document.querySelectorAll('option').length == 1")
        page.run(CHOOSE_FILE % base64.b64encode(file.getvalue()).decode())

        def colours(answer: Any, *places: Tuple[float, float]) -> List[List[int]]:
            answered = f"window.fetch = async () => new Response(JSON.stringify({json.dumps(answer)}))"
            page.run(f"drawn.hidden = true; {answered}; send.click()")
            assert page.wait("!drawn.hidden && drawn.width") == 640
            read = "[...drawn.getContext('2d').getImageData(%d, %d, 1, 1).data].slice(0, 3)"
            return [page.run(read % (x * 16, y * 16)) for x, y in places]

        white = [255, 255, 255]
        inside, single, outside, edge, beyond = colours(
            answers["found"], (20.5, 6.5), (7.5, 12.5), (7.5, 13.5), (35, 10), (38, 18)
        )
        assert inside == single != white and outside == beyond == white and edge not in (white, inside)
        left, right = colours(answers["segments"], (10, 10), (30, 10))
        np.testing.assert_allclose(left, (palette(256)[0] + 255.0) / 2, atol=2)
        np.testing.assert_allclose(right, (palette(256)[9] + 255.0) / 2, atol=2)
        assert page.run("[...bars.children].map(one => one.textContent).join()") == "sky,,75.0 %,sea,,25.0 %"
        nose, tail, between = colours(answers["points"], (10, 5), (30, 15), (20, 10))
        assert nose != white != tail != nose and between == white
        assert page.run("bars.hidden") and page.errors == []
        page.run("model.dispatchEvent(new Event('change'))")
        assert page.run("drawn.hidden"), "nothing of the old answer"
