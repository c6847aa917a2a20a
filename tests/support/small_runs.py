"""A small run of every task and every model option, and of one network of each GluonCV family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "dataset.eval_batch_size=5",
)
FOUR = ("dataset.batch_size=4",)
BERT = (
    "model.num_layers=1",
    "model.units=16",
    "model.hidden_size=32",
    "model.num_heads=2",
    "dataset.max_length=16",
    "dataset.vocab_size=100",
    *FOUR,
)
RUNNING = (
    "task=language_modeling",
    "dataset.max_length=8",
    "dataset.vocab_size=300",
    "model.units=16",
    "model.num_layers=2",
    "dataset.val_fraction=0.4",
    "task.new_tokens=4",
    "dataset.train=FOLDER/text.txt",
    *FOUR,
)
PAIRS = (
    "task=translation",
    "dataset=parallel_text",
    "dataset.train=FOLDER/pairs",
    "dataset.vocab_size=300",
    "model.units=16",
    "dataset.batch_tokens=null",
    "dataset.val_fraction=0.4",
    "task.max_length_offset=2",
    "task.beam_size=2",
    *FOUR,
)
SCENES = (
    "dataset.image_size=[32,32]",
    "dataset.digit_size=[8,12]",
    "dataset.num_train=16",
    "dataset.num_val=6",
    *FOUR,
)
FPN = ("model.channels=[8,16]", "model.width=8")
LARGER = ("dataset.image_size=[64,64]", "dataset.num_train=8", "dataset.num_val=6", *FOUR)
REGIONS = (
    "model.backbone=mobilenet0.25",
    "model.channels=8",
    "model.head_units=32",
    "model.region_samples=16",
    "model.proposals=60",
    "model.regions=20",
    *LARGER,
)
BOUGHT = (
    "task=recommendation",
    "dataset=interactions",
    "dataset.path=FOLDER/bought.csv",
    "dataset.sampled_negatives=5",
    "model.units=8",
    *FOUR,
)
SEQUENCES = (
    "task=sequential_recommendation",
    "dataset.num_users=24",
    "dataset.num_items=20",
    "dataset.length=[4,9]",
    "model.units=8",
    "model.hidden_size=12",
    *FOUR,
)
SPOKEN = ("task=speech_recognition", "dataset.num_train=16", "dataset.num_val=6", "dataset.length=[1,3]", *FOUR)
TAGS = (
    "task=token_classification",
    "dataset.root=FOLDER",
    "dataset.repair_tags=true",
    "dataset.val=null",
    "dataset.test=null",
    "dataset.val_fraction=0.4",
)
QUESTIONS = (
    "task=question_answering",
    "dataset.root=FOLDER",
    "dataset.train=train.json",
    "dataset.max_question=3",
    "dataset.doc_stride=4",
    "dataset.val=null",
    "dataset.test=null",
    "dataset.val_fraction=0.4",
)
LSTM = ("model.units=8", "model.embed_size=8", "dataset.vocab_size=100", "dataset.max_length=12", *FOUR)

CASES: Dict[str, Tuple[str, ...]] = {
    "lenet": ("model=lenet", "model.channels=[2,4]", "model.hidden=8"),
    "mlp": ("model=mlp", "model.hidden=[8]"),
    "resnet": ("model=resnet", "model.depth=8", "model.width=0.25"),
    "regression": ("task=regression",),
    "lenet, numbers": (
        "task=regression",
        "dataset=digit_angles",
        "dataset.num_train=16",
        "dataset.num_val=6",
        "model.channels=[2,4]",
        "model.hidden=8",
        *FOUR,
    ),
    "bert, numbers": ("task=regression", "dataset=text", "model=bert", *BERT),
    "wide_deep": ("task=tabular",),
    "deepfm": ("task=tabular", "model=deepfm"),
    "factorization_machine": ("task=tabular", "model=factorization_machine"),
    "bert": ("dataset=text", "model=bert", "dataset.train=FOLDER/texts.csv", "dataset.sentence=text", *BERT),
    "bert, tags": ("model=bert", *TAGS, *BERT),
    "bilstm": (*TAGS, *LSTM),
    "bilstm, texts": ("dataset=text", "model=bilstm", "dataset.train=FOLDER/texts.csv", "dataset.sentence=text", *LSTM),
    "bert, questions": ("model=bert", *QUESTIONS, *BERT),
    "bilstm, questions": (*QUESTIONS, *LSTM),
    "bert, masked": (
        "task=masked_language_modeling",
        "dataset.train=FOLDER/text.txt",
        *BERT[:-2],
        "dataset.vocab_size=400",
        *FOUR,
    ),
    "lstm": (*RUNNING, "model.hidden_size=24"),
    "gpt": ("model=gpt", "model.num_heads=2", *RUNNING),
    "gpt, experts": ("model=gpt", "model.experts=4", "model.capacity_factor=1", "model.num_heads=2", *RUNNING),
    "transformer": (*PAIRS, "model.hidden_size=24", "model.num_heads=2", "model.num_layers=1"),
    "gnmt": ("model=gnmt", *PAIRS),
    "transformer, summaries": (
        "task=summarization",
        "dataset.num_train=16",
        "dataset.num_val=6",
        "dataset.vocab_size=100",
        "dataset.max_length=24",
        "dataset.max_summary_length=12",
        "task.max_length_offset=3",
        "model.units=16",
        "model.hidden_size=24",
        "model.num_heads=2",
        "model.num_layers=1",
        *FOUR,
    ),
    "fpn": ("task=segmentation", *SCENES, *FPN),
    "pose_fpn": ("task=pose_estimation", *SCENES, *FPN),
    "centernet_fpn": ("task=detection", *SCENES, *FPN),
    "yolact": ("task=instance_segmentation", "model.prototypes=4", *SCENES, *FPN),
    "ssd": ("task=detection", "model=ssd", *LARGER),
    "yolo3": ("task=detection", "model=yolo3", *LARGER),
    "gluoncv_centernet": ("task=detection", "model=gluoncv_centernet", *LARGER),
    "gluoncv_segmentation": ("task=segmentation", "model=gluoncv_segmentation", *LARGER),
    "faster_rcnn": ("task=detection", "model=faster_rcnn", "model.name=faster_rcnn_fpn_custom", *REGIONS),
    "mask_rcnn": (
        "task=instance_segmentation",
        "model=mask_rcnn",
        "model.name=mask_rcnn_fpn_custom",
        *REGIONS,
        "model.mask_channels=8",
        "model.mask_convs=1",
        "model.max_detections=5",
    ),
    "gluoncv_video": ("model=gluoncv_video", "dataset.image_size=[32,32]", *FOUR),
    "simple_pose": ("task=pose_estimation", "model=simple_pose", *LARGER),
    "deep_speech2": (*SPOKEN, "dataset.height=8", "model.channels=[2,3,2]", "model.units=8", "model.num_layers=2"),
    "conformer": (*SPOKEN, "model=conformer", "model.units=16", "model.num_heads=2", "model.num_layers=1"),
    "keyword_cnn": ("dataset=formant_keywords", "dataset.num_train=64", "model.channels=[4,8]", *FOUR),
    "fastspeech": (
        "task=speech_synthesis",
        "dataset.num_train=16",
        "dataset.num_val=6",
        "dataset.length=[1,2]",
        "dataset.features.sample_rate=4000",
        "dataset.features.window_ms=200",
        "dataset.features.step_ms=50",
        "dataset.features.num_mels=16",
        "model.units=8",
        "model.hidden_size=12",
        "task.iterations=2",
        *FOUR,
    ),
    "tcn": (
        "task=forecasting",
        "dataset.context=24",
        "dataset.horizon=3",
        "model.units=8",
        "model.num_layers=2",
        *FOUR,
    ),
    "n_beats": (
        "task=forecasting",
        "model=n_beats",
        "dataset.context=24",
        "dataset.horizon=3",
        "model.units=8",
        "model.num_blocks=1",
        "model.num_layers=2",
        *FOUR,
    ),
    "deepar": ("task=forecasting", "model=deepar", "dataset.context=24", "dataset.horizon=3", "model.units=8", *FOUR),
    "fism": (*BOUGHT, "dataset.max_history=3"),
    "neumf": ("model=neumf", *BOUGHT),
    "svd_pp": ("model=svd_pp", *BOUGHT),
    "matrix_factorization": ("model=matrix_factorization", *BOUGHT),
    "sasrec": ("model=sasrec", *SEQUENCES),
    "gru4rec": ("model=gru4rec", "loss=bpr", *SEQUENCES),
    "actor_critic": (
        "task=reinforcement_learning",
        "dataset.num_envs=4",
        "dataset.rollout_steps=8",
        "dataset.val_episodes=10",
        "model.normalize_observations=true",
        "dataset.batch_size=8",
        "model.hidden=[8]",
    ),
    "q_network": (
        "task=reinforcement_learning",
        "model=q_network",
        "dataset.val_episodes=10",
        "dataset.rollouts_per_epoch=10",
        "loss.learning_starts=40",
        "loss.target_interval=2",
        "model.normalize_observations=true",
        "model.hidden=[8]",
    ),
    "soft_actor_critic": (
        "task=reinforcement_learning",
        "model=soft_actor_critic",
        "dataset.val_episodes=10",
        "dataset.rollouts_per_epoch=10",
        "loss.learning_starts=40",
        "model.normalize_observations=true",
        "model.hidden=[8]",
    ),
}
"""Name -> overrides. The name begins with that of the model option; FOLDER is where `write_data` wrote."""

SIDES = {
    "inceptionv3": 299,
    "alexnet": 224,
    "xception": 71,
    "squeezenet1.1": 224,
    "googlenet": 224,
    "densenet121": 224,
    "hrnet_w18_small_v1_c": 64,
}
"""Sides of images in pixels, where 32 are too few."""


def classifier_words(name: str) -> Tuple[str, ...]:
    """Overrides of a small run of one of GluonCV's classifiers."""
    side = SIDES.get(name, 32)
    return ("model=gluoncv", f"model.name={name}", f"dataset.image_size=[{side},{side}]", *FOUR)


def with_data(overrides: Sequence[str], folder: Path) -> List[str]:
    """The overrides, with the folder that `write_data` wrote to."""
    return [word.replace("FOLDER", str(folder)) for word in overrides]


def write_data(folder: Path) -> None:
    """Writes data of all kinds."""
    words = [f"w{number}" for number in range(20)]
    (folder / "text.txt").write_text("\n\n".join(["one two three four five six seven eight nine"] * 100))
    lines = [
        [
            (words[(row * 7 + place * 3) % 20], f"{'B' if place % 2 else 'I'}-X" if place % 3 else "O")
            for place in range(9)
        ]
        for row in range(60)
    ]
    (folder / "train.txt").write_text("\n\n".join("\n".join(map(" ".join, line)) for line in lines))
    paragraphs = [
        {
            "context": f"one {words[row % 20]} two three four five six seven eight nine ten {row}",
            "qas": [{"id": str(row), "question": "one", "answers": [{"text": words[row % 20], "answer_start": 4}]}],
        }
        for row in range(60)
    ]
    (folder / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    for language, name in (("en", "one"), ("de", "eins")):
        pairs = [f"{name} {' '.join(words[(row * 7) % 20 :][: row % 4 + 1])}" for row in range(80)]
        (folder / f"pairs.{language}").write_text("\n".join(pairs) + "\n")
    pairs = [f"u{user},i{(user * 5 + place * place) % 20}" for user in range(40) for place in range(6)]
    (folder / "bought.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    texts = [
        f"{'ab'[row % 2]},{' '.join(words[(row * k + row) % 20] for k in range(1, 4 + row % 7))}" for row in range(120)
    ]
    (folder / "texts.csv").write_text("\n".join(["label,text", *texts]) + "\n")
