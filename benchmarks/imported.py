"""Speed of imported models, one text at a time on one thread, compared with other libraries.

    python -m benchmarks.imported [--only gpt2,marian,llama] [--quick] [--out FILE]

Sizes of GPT-2 124M, opus-mt and SmolLM-135M, with random weights that Transformers saves.
`regard import` reads them in a process of its own, `regard export` writes what CTranslate2 and ONNX
Runtime open. All take turns in this process and generate the same number of tokens, greedily, timed
by the processor's clock.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import tokenizers
import torch
import transformers

import regard
from benchmarks.peers.options import Options, Report
from benchmarks.peers.rounds import Times, report_ratios, take_turns
from regard.decode.config import DecodeConfig, SampleConfig
from regard.system.allocator import keep_freed_memory

TEXTS, GIVEN, NEW = 2, 32, 32  # texts of a round, tokens of each, new tokens
_LAYERS = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}
CONFIGS = {
    "gpt2": transformers.GPT2Config(initializer_range=0.06, bos_token_id=None, eos_token_id=50255),
    "marian": transformers.MarianConfig(
        vocab_size=58101,
        d_model=512,
        activation_function="swish",
        scale_embedding=True,
        init_std=0.06,
        bos_token_id=None,
        eos_token_id=58099,
        pad_token_id=58100,
        decoder_start_token_id=58100,
        forced_eos_token_id=None,
        **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in _LAYERS.items()},
    ),
    "llama": transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=49150,
    ),
}
OURS, OURS_INT8 = "regard, compiled float32", "regard, compiled int8"
LEAST = {"Transformers": 1.5, "CTranslate2": 1.0, "ONNX Runtime": 1.0, "CTranslate2 int8": 1.3}
_ONCE = re.compile(r"model\.encoder|encoder_attn\.[kv]_proj|wpe|embed_positions")  # not every step
_IMPORT = """
import os, sys
from regard.cli.main import main
main(["import", *sys.argv[1:]])
status = dict(line.split(":") for line in open("/proc/self/status"))
print(sum(os.times()[:2]), status["VmHWM"].split()[0])
"""
Continue = Callable[[list[int]], list[int]]  # from the ids of a text to new ones


def save_model(config: Any, folder: Path) -> int:
    """Save a random model and a BPE of as many pieces; return how many weights a token needs."""
    torch.manual_seed(1)
    model = _auto_class(config).from_config(config)
    if config.is_encoder_decoder:
        model.final_logits_bias[0, [config.eos_token_id, config.pad_token_id]] = -1e4  # never
    for name, value in model.named_parameters():
        if "encoder_attn" in name:  # otherwise an output repeats one token
            value.data *= 0.2
    model.save_pretrained(folder)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    merges = [(a, b) for a in letters for b in letters][: config.vocab_size - len(letters) - 2]
    pieces = [*letters, *map("".join, merges), "</s>", "<pad>"]
    bpe = tokenizers.models.BPE({piece: n for n, piece in enumerate(pieces)}, merges)
    tokenizers.Tokenizer(bpe).save(str(folder / "tokenizer.json"))
    return sum(value.numel() for name, value in model.named_parameters() if not _ONCE.search(name))


def measure_import(folder: Path, run: Path) -> str:
    """Import a folder in a process of its own, and return a line about time and memory."""
    start = time.perf_counter()
    command = [sys.executable, "-c", _IMPORT, str(folder), "--run", str(run)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall, (cpu, peak) = time.perf_counter() - start, map(float, result.stdout.split()[-2:])
    return f"  import: {wall:.1f} s, {cpu:.1f} s of CPU, {peak * 1.024e-3:,.0f} MB at the peak"


def continue_compiled(run: Path, compute_type: str, config: Any) -> Continue:
    """Continue with the compiled engine."""
    engine = regard.load(run, engine="compiled", compute_type=compute_type).engine
    if not config.is_encoder_decoder:
        likeliest = SampleConfig(length=NEW, temperature=0.0)
        options: dict[str, Any] = {"window": None, "seeds": [1], "banned": []}
        return lambda ids: engine.generate([ids], likeliest, **options)[0]
    search = DecodeConfig(beam=1, max_ratio=0.0, max_extra=NEW)
    pad, eos = config.pad_token_id, config.eos_token_id
    return lambda ids: engine.search([ids], config=search, bos=pad, eos=eos, pad=pad)[0][0].tokens


def continue_with_transformers(folder: Path, config: Any) -> Continue:
    """Continue with Transformers' `generate` and its cache."""
    model = _auto_class(config).from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    options = {"do_sample": False, "max_new_tokens": NEW}

    @torch.inference_mode()
    def continue_text(ids: list[int]) -> list[int]:
        given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([[1] * len(ids)])}
        return model.generate(**given, **options)[0, -NEW:].tolist()

    return continue_text


def continue_with_ctranslate2(folder: Path, compute_type: str, config: Any) -> Continue:
    """Continue with CTranslate2, by the export of the run."""
    (vocabulary,) = folder.glob("*vocabulary.json")
    names = json.loads(vocabulary.read_text(encoding="utf-8"))
    numbers = {name: number for number, name in enumerate(names)}
    kind = ctranslate2.Translator if config.is_encoder_decoder else ctranslate2.Generator
    engine = kind(str(folder), inter_threads=1, intra_threads=1, compute_type=compute_type)

    def continue_text(ids: list[int]) -> list[int]:
        texts = [[names[number] for number in ids]]
        if config.is_encoder_decoder:
            (found,) = engine.translate_batch(texts, beam_size=1, max_decoding_length=NEW)
            return [numbers[name] for name in found.hypotheses[0]]
        options = {"max_length": NEW, "include_prompt_in_result": False}
        return engine.generate_batch(texts, sampling_topk=1, **options)[0].sequences_ids[0]

    return continue_text


def continue_with_onnx(folder: Path, config: Any) -> Continue:
    """Continue with ONNX Runtime, by the export of the run and a loop over past keys."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    graphs = folder.glob("*.onnx")
    opened = {path.stem: onnxruntime.InferenceSession(path, options) for path in graphs}
    decoder = opened.get("decoder") or opened["model"]
    nothing = {
        given.name: np.zeros((1, given.shape[1], 0, given.shape[3]), np.float32)
        for given in decoder.get_inputs()
        if given.name.startswith("past") and ".encoder." not in given.name
    }

    def run(session: Any, given: dict[str, Any]) -> dict[str, Any]:
        names = [one.name.replace("present.", "past_key_values.") for one in session.get_outputs()]
        return dict(zip(names, session.run(None, given), strict=True))

    def continue_text(ids: list[int]) -> list[int]:
        given, tokens = {"input_ids": np.array([ids]), **nothing}, list[int]()
        mask = np.ones((1, len(ids)), np.int64)
        if config.is_encoder_decoder:
            source = {"input_ids": given["input_ids"], "attention_mask": mask}
            given |= run(opened["encoder"], source) | {"encoder_attention_mask": mask}
            del given["last_hidden_state"]
            given["input_ids"] = np.array([[config.decoder_start_token_id]])
        while len(tokens) < NEW:
            if not config.is_encoder_decoder:
                given["attention_mask"] = np.ones((1, len(ids) + len(tokens)), np.int64)
            given |= run(decoder, given)
            tokens.append(int(given.pop("logits")[0, -1].argmax()))
            given["input_ids"] = np.array([tokens[-1:]])
        return tokens

    return continue_text


def _auto_class(config: Any) -> Any:
    kinds = transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM
    return kinds[config.is_encoder_decoder]


def compare(config: Any, folder: Path, report: Report, rounds: int) -> None:
    """Report the tables of a model."""
    weights = torch.from_numpy(np.ones(save_model(config, folder / "given"), np.float32))
    report.write(f"\n  {config.model_type}, {len(weights) / 1e6:.1f} M weights for each new token")
    report.write(measure_import(folder / "given", run := folder / "run"))
    for to in ("ctranslate2", "onnx"):
        command = [sys.executable, "-m", "regard", "export", str(run), "--to", to]
        subprocess.run([*command, "--out", str(folder / to)], check=True, capture_output=True)
    contestants: dict[str, Continue] = {
        OURS: continue_compiled(run, "float32", config),
        "Transformers": continue_with_transformers(folder / "given", config),
        "CTranslate2": continue_with_ctranslate2(folder / "ctranslate2", "float32", config),
        "ONNX Runtime": continue_with_onnx(folder / "onnx", config),
        "regard, weights read by torch.sum": lambda _: [int(weights.sum()) for _ in range(NEW)],
        OURS_INT8: continue_compiled(run, "int8", config),
        "CTranslate2 int8": continue_with_ctranslate2(folder / "ctranslate2", "int8", config),
    }
    texts = torch.randint(config.vocab_size - 2, (rounds + 1, TEXTS, GIVEN)).tolist()
    outputs: dict[str, list[list[int]]] = {name: [] for name in contestants}

    spent: dict[str, list[float]] = {name: [] for name in contestants}

    def turn(number: int, name: str) -> None:
        start = time.process_time()
        outputs[name] += [contestants[name](ids) for ids in texts[number]]
        spent[name].append(time.process_time() - start)

    turns = {name: lambda number, name=name: turn(number, name) for name in contestants}
    others = take_turns(turns, rounds=rounds).disturbed
    assert {len(ids) for found in outputs.values() for ids in found} == {NEW}

    def extra(name: str, rate: float) -> str:
        same = sum(map(list.__eq__, outputs[name], outputs[OURS])) / len(outputs[OURS])
        read = rate * len(weights) * (1 if "int8" in name else 4) / 1e9
        return f"{same:5.0%} {read:6.1f}{f' >= {LEAST[name]}' if name in LEAST else ''}"

    report.write("  tokens/s: least, median, most; time / ours; same ids; GB/s of weights; asked")
    for ours in (OURS, OURS_INT8):
        table = {name: spent[name][1:] for name in spent if ("int8" in name) == ("int8" in ours)}
        times = Times(table, others)
        report_ratios(report, times, TEXTS * NEW, unit="tokens", ours=ours, extra=extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default=",".join(CONFIGS), help=f"some of {','.join(CONFIGS)}")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--out", type=Path, help="file for the tables")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    report, options = Report(parsed.out), Options(Path(), None, parsed.quick, 1, "kept", None)
    report.head("Imported models", options, "transformers", "ctranslate2", "onnxruntime")
    for name in parsed.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            compare(CONFIGS[name], Path(folder), report, options.rounds(7))


if __name__ == "__main__":
    main()
