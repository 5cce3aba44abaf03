"""CTranslate2 behind FastAPI, as an engineer would write it: the baseline of `benchmarks.serve`.

    uvicorn benchmarks.serve.ctranslate2_app:app          MODEL names the folder of `regard export`

The translator decodes two batches in parallel, each on one thread. Two tasks take all that waits,
up to 64 texts, and translate it in one call; nothing waits for a batch to fill up.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ctranslate2
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

WORKERS, MOST = 2, 64
"""Batches in parallel, and texts of a batch."""

folder = Path(os.environ["MODEL"])
beam = int(os.environ["BEAM"])
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
numbers = tokenizer.get_vocab()
translator = ctranslate2.Translator(
    str(folder), inter_threads=WORKERS, intra_threads=1, compute_type="float32"
)
waiting: asyncio.Queue[tuple[list[str], asyncio.Future]] = asyncio.Queue()


class Request(BaseModel):
    text: str


class Reply(BaseModel):
    text: str
    score: float


async def translate() -> None:
    """Translate what waits, again and again."""
    while True:
        batch = [await waiting.get()]
        while len(batch) < MOST and not waiting.empty():
            batch.append(waiting.get_nowait())
        sources = [tokens for tokens, _ in batch]
        options = {"beam_size": beam, "return_scores": True}
        options["max_decoding_length"] = 2 * max(map(len, sources)) + 10
        results = await asyncio.to_thread(translator.translate_batch, sources, **options)
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(translate()) for _ in range(WORKERS)]
    yield
    for task in tasks:
        task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/translate")
async def answer(request: Request) -> Reply:
    future = asyncio.get_running_loop().create_future()
    await waiting.put((tokenizer.encode(request.text).tokens, future))
    result = await future
    ids = [numbers[token] for token in result.hypotheses[0]]
    return Reply(text=tokenizer.decode(ids), score=result.scores[0])
