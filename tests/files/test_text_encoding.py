"""The encoding that text is likely to have."""

from __future__ import annotations

import pytest

from mxtrain.files.text_encoding import guess_encoding

TEXTS = {
    "GB18030": ["这家餐厅的服务非常好，我们下次还会再来。", "商品质量很差，不推荐购买。", "内容,标签"],
    "BIG5": ["這家餐廳的服務非常好，我們下次還會再來。", "商品品質很差，不推薦購買。"],
    "SHIFT_JIS": ["このレストランのサービスはとても良かったです。", "商品の品質が悪いので、お勧めしません。"],
    "EUC-JP": ["このレストランのサービスはとても良かったです。", "商品の品質が悪いので、お勧めしません。"],
    "EUC-KR": ["이 식당의 서비스는 매우 좋았습니다.", "상품 품질이 나빠서 추천하지 않습니다."],
    "WINDOWS-1252": ["Le café était très agréable, à côté de l'hôtel.", "Straße, Größe und Überfluß", "a “b” €5"],
    "WINDOWS-1251": ["Обслуживание в этом ресторане очень хорошее.", "Качество плохое"],
}


@pytest.mark.parametrize("encoding, text", [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_encoding_of_a_text(encoding: str, text: str) -> None:
    assert guess_encoding([text.encode(encoding.lower())]) == encoding


def test_encoding_of_damaged_and_mixed_text() -> None:
    assert guess_encoding([b"good," + "质量很差，不推荐".encode("gb18030")[:-1], b"id,1"]) == "GB18030"
    assert guess_encoding([b"\xff\xfe\x00", b""]) in ("WINDOWS-1252", "WINDOWS-1251") and guess_encoding([])
