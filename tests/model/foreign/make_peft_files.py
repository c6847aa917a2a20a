"""Writes peft_files.tar.xz: networks of transformers, adapters of PEFT, and the outputs that both compute together.

Written by peft 0.21.2, transformers 5.24.0 and torch 2.14.1:

    python tests/model/foreign/make_peft_files.py
"""

import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

TOKENS = np.random.RandomState(0).randint(0, 12, (2, 6))
BERT = BertConfig(
    vocab_size=12,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    num_labels=3,
)
GPT2 = GPT2Config(vocab_size=12, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
ADAPTERS = {
    "bert_lora": LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=6, target_modules=["query", "value"]),
    "bert_biases": LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=6, target_modules="all-linear", bias="lora_only"),
    "gpt2_lora": LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=5, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True
    ),
    "gpt2_rslora": LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=5, target_modules=["c_fc"], fan_in_fan_out=True, use_rslora=True
    ),
}


def randomise(network, *parts):
    with torch.no_grad():
        for name, one in network.named_parameters():
            if any(part in name for part in parts):
                one.copy_(torch.randn_like(one) * 0.3)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        outputs = {"tokens": TOKENS}
        for kind, config, make in (("bert", BERT, BertForSequenceClassification), ("gpt2", GPT2, GPT2LMHeadModel)):
            network = make(config)
            randomise(network, "")
            # BERT without its head, as bert-base-uncased is.
            getattr(network, "bert", network).save_pretrained(folder / kind)
        for name, lora in ADAPTERS.items():
            make = BertForSequenceClassification if name.startswith("bert") else GPT2LMHeadModel
            base = folder / name.partition("_")[0]
            labels = {"num_labels": 3} if name.startswith("bert") else {}
            network = get_peft_model(make.from_pretrained(base, **labels), lora)
            network.peft_config["default"].base_model_name_or_path = base.name
            randomise(network, "lora_", "modules_to_save", "base_layer.bias")
            network.save_pretrained(folder / name)
            network = PeftModel.from_pretrained(make.from_pretrained(base, **labels), folder / name).eval()
            with torch.no_grad():
                outputs[name] = network(torch.tensor(TOKENS)).logits.numpy()
        np.savez(folder / "outputs.npz", **outputs)
        with tarfile.open(Path(__file__).with_name("peft_files.tar.xz"), "w:xz") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.name != "README.md" and path.name != "generation_config.json":
                    archive.add(path, path.relative_to(folder).as_posix(), filter=anonymous)


def anonymous(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
