"""Clients of OpenAI and LibreTranslate get the answers of `predict` from the service."""

import hashlib
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

import openai
import pytest

from regard.recipes.base.recipe import Answer
from regard.recipes.base.trained import TrainedRun
from regard.serve.conventions.openai import CompletionChoice, CompletionQuery
from regard.serve.guard import Guard
from tests.serve.running import Response, RunningService, serving_here, untrained_run

KEY = "secret"
HEADERS = {"Authorization": f"Bearer {KEY}"}
RECIPES = {"en-de": "translate", "letters": "language"}
"""Recipes by the names of their runs."""
PAIR = {"source": "en", "target": "de", "api_key": KEY}


class Clients(NamedTuple):
    """Runs by name, their service, and a client of OpenAI's."""

    runs: dict[str, TrainedRun]
    service: RunningService
    openai: openai.OpenAI

    def complete(self, **options: Any) -> Any:
        return self.openai.completions.create(**{"model": "letters", "prompt": "a b"} | options)

    def translate(self, **fields: Any) -> Response:
        return self.service.ask("/translate", PAIR | fields)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("conventions")
    runs = {name: untrained_run(recipe, root / name) for name, recipe in RECIPES.items()}
    runs["toy"] = runs["en-de"]
    guard = Guard(keys={"ann": hashlib.sha256(KEY.encode()).hexdigest()})
    with (
        serving_here(runs, guard) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield Clients(runs, service, client)


def texts(completion: Any) -> list[str]:
    return [choice.text for choice in completion.choices]


def test_completions_are_those_of_predict(clients: Clients) -> None:
    prompts = ["a b", "c"]
    filters = {"top_p": 0.95, "extra_body": {"min_p": 0.1, "repetition_penalty": 1.3}}
    found = clients.complete(prompt=prompts, seed=3, max_tokens=12, temperature=0.9, **filters)
    options = {"seed": 3, "length": 12, "temperature": 0.9, "top_p": 0.95}
    options |= filters["extra_body"]
    assert texts(found) == clients.runs["letters"].predict(prompts, **options)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert {choice.finish_reason for choice in found.choices} == {"length"}
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 24, 28)
    assert found.model == "letters"


def test_completion_has_the_settings_of_the_run_and_16_tokens(clients: Clients) -> None:
    expected = clients.runs["letters"].predict(["a b"], length=16)
    ignored = {"user": "ann", "presence_penalty": 0, "best_of": 1, "seed": None}
    assert texts(clients.complete(**ignored)) == expected


def test_samples_have_seeds_in_a_row(clients: Clients) -> None:
    run, expected = clients.runs["letters"], []
    for prompt in ("a b", "c"):
        number = 1 if prompt == "a b" else 2
        for seed in (7, 8):
            answers = run.predict(["a b", "c"][:number], seed=seed, length=6)
            expected.append(prompt + answers[-1])
    found = clients.complete(prompt=["a b", "c"], n=2, seed=7, max_tokens=6, echo=True)
    assert texts(found) == expected
    assert len(set(expected)) == 4
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.usage.prompt_tokens == 4


@pytest.mark.parametrize("stop", ["b", ["zz", "c", " b"], ["\n", "a", "b", "c"], "zz"])
def test_text_ends_before_stop(clients: Clients, stop: Any) -> None:
    options = {"prompt": "a b", "max_tokens": 20, "seed": 5}
    whole = texts(clients.complete(**options))[0]
    places = [whole.find(one) for one in ([stop] if isinstance(stop, str) else stop)]
    end = min([place for place in places if place >= 0], default=len(whole))
    (choice,) = clients.complete(**options, stop=stop).choices
    assert choice.text == whole[:end]
    assert choice.finish_reason == ("length" if end == len(whole) else "stop")
    streamed = clients.complete(**options, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole[:end]


def test_no_part_has_the_begin_of_a_stop() -> None:
    query = CompletionQuery(model="letters", prompt="ab", echo=True, stop=["ab ", "d"])
    choice, parts = CompletionChoice(0, query, "ab "), []
    for character in "xaabab ":
        parts.append(choice.add(character)["text"])
    parts.append(choice.add("xaabab c", Answer("", {}, []))["text"])
    assert parts == ["ab", " ", "x", "a", "a", "b", "", ""]
    cut = Answer("", {}, [], is_finished=False)
    assert choice.add("xaabab c", cut)["finish_reason"] == "stop"


def test_streamed_completion_is_the_same(clients: Clients) -> None:
    options = {"prompt": ["a b", "c"], "n": 2, "seed": 3, "max_tokens": 50, "echo": True}
    expected = clients.complete(**options)
    found, reasons, parts, usage = [""] * 4, [""] * 4, 0, None
    for chunk in clients.complete(
        **options, stream=True, stream_options={"include_usage": True}, stop="zz"
    ):
        assert chunk.model == "letters"
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts += 1
            found[choice.index] += choice.text
            reasons[choice.index] += choice.finish_reason or ""
    assert found == texts(expected)
    assert reasons == ["length"] * 4
    assert parts > 4
    assert usage == expected.usage


def test_stream_ends_with_done(clients: Clients) -> None:
    body = {"model": "letters", "prompt": "a", "stream": True}
    response = clients.service.ask("/v1/completions", body, headers=HEADERS)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.body.endswith(b"\n\ndata: [DONE]\n\n")


def test_models_are_language_runs(clients: Clients) -> None:
    models = clients.openai.models
    assert [model.id for model in models.list()] == ["letters"]
    assert models.retrieve("letters").owned_by == "regard"
    with pytest.raises(openai.NotFoundError, match="no model 'en-de'; the models are: letters"):
        models.retrieve("en-de")


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"prompt": [[1, 2]]}, "prompt[0]", "prompt.0.: Expected `str`, got `array`"),
        ({"prompt": ["a", ""]}, "prompt[1]", "input 2 is empty"),
        ({"max_tokens": 5000}, "max_tokens", "max_tokens must be from 1 to 1,024, got 5000"),
        ({"max_tokens": 5000, "stream": True}, "max_tokens", "max_tokens must be from"),
        ({"prompt": "", "stream": True}, "prompt[0]", "is empty"),
        ({"temperature": -1}, "temperature", "temperature must be from 0"),
        ({"top_p": 0}, "top_p", "top_p must be from"),
        ({"seed": 2**32 - 1, "n": 2}, None, "seed"),
        ({"n": 0}, "n", "n: Expected `int` >= 1"),
        ({"n": 257}, "n", "at most 256 choices"),
        ({"stop": list("abcde")}, "stop", "stop: Expected `array` of length <= 4"),
        ({"stop": ""}, "stop", "stop: Expected `str` of length >= 1"),
        ({"logprobs": 0}, "logprobs", "logprobs: Expected `null`"),
        ({"best_of": 3, "n": 2}, "best_of", "best_of must be n .2."),
        ({"suffix": "c"}, "suffix", "suffix is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
    ],
)
def test_wrong_request_for_a_completion(
    clients: Clients, options: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as error:
        clients.complete(**options)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"


def test_other_errors_have_the_form_of_openai(clients: Clients) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        clients.complete(model="other")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError) as unknown:
        clients.openai.with_options(api_key="other").models.list()
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.APIStatusError, match="the body may have 10,000,000 bytes") as large:
        clients.complete(prompt="a" * 10_000_001)
    assert large.value.status_code == 413
    assert large.value.type == "invalid_request_error"


def test_translation_is_that_of_predict(clients: Clients) -> None:
    run, inputs = clients.runs["en-de"], ["a b c", "c"]
    expected = run.predict(inputs)
    assert clients.translate(q="a b c").json == {"translatedText": expected[0]}
    assert clients.translate(q=inputs).json == {"translatedText": expected}


def test_alternatives_are_the_next_best_within_the_beam(clients: Clients) -> None:
    run = clients.runs["en-de"]
    best, other = (ranked.text for ranked in run.predict(["a b c"], n_best=2)[0])
    expected = {"translatedText": best, "alternatives": [other]}
    assert clients.translate(q="a b c", alternatives=1).json == expected
    assert clients.translate(q="a b c", alternatives=30).json == expected
    found = clients.translate(q=["a b c", "c"], alternatives=1).json
    assert [len(own) for own in found["alternatives"]] == [1, 1]


def test_run_is_found_by_its_languages(clients: Clients) -> None:
    service = clients.service
    assert service.ask("/languages").json == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
        {"code": "auto", "name": "auto", "targets": ["toy"]},
        {"code": "toy", "name": "toy", "targets": []},
    ]
    found = clients.translate(q=["a", "b"], source="auto").json
    assert found["detectedLanguage"] == [{"language": "en", "confidence": 0}] * 2
    found = clients.translate(q="a b c", source="auto", target="toy").json
    assert found["translatedText"] == clients.runs["toy"].predict(["a b c"])[0]
    assert found["detectedLanguage"] == {"language": "auto", "confidence": 0}
    for source, target in (("de", "en"), ("en", "toy"), ("auto", "letters")):
        response = clients.translate(q="a", source=source, target=target)
        assert response.status == 400
        expected = f"no run translates from {source} to {target}; expected one of: en to de, auto"
        assert response.json["error"].startswith(expected)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_form_is_read(clients: Clients, kind: str) -> None:
    fields = PAIR | {"q": "a b c", "alternatives": "1", "format": "text"}
    body = urllib.parse.urlencode(fields).encode()
    if kind == "multipart/form-data":
        kind, body = f"{kind}; boundary=X", b""
        for name, value in fields.items():
            head = f'--X\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
            body += f"{head}{value}\r\n".encode()
        body += b"--X--\r\n"
    response = clients.service.ask("/translate", body, headers={"Content-Type": kind})
    assert response.json == clients.translate(q="a b c", alternatives=1).json


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": "a", "format": "html"}, "format: Invalid enum value 'html'"),
        ({"q": 3}, "q: Expected `str | array`, got `int`"),
        ({"q": []}, "q: expected 1 to 256 inputs, got 0"),
        ({"q": ["a", "a " * 2000]}, r"q[1]: input 2 is too long"),
        ({"q": "a", "target": None}, "target: Expected `str`"),
        ({"q": "a", "alternatives": -1}, "alternatives: Expected `int` >= 0"),
        ({}, "Object missing required field `q`"),
    ],
)
def test_wrong_request_for_a_translation(
    clients: Clients, fields: dict[str, Any], message: str
) -> None:
    response = clients.translate(**fields)
    assert response.status == 400
    assert response.json.keys() == {"error"}
    assert response.json["error"].startswith(message)


def test_key_of_a_translation(clients: Clients) -> None:
    assert clients.translate(q="a", api_key="other").status == 403
    body = {"q": "a", "source": "en", "target": "de"}
    response = clients.service.ask("/translate", body)
    assert response.status == 403
    assert "expected a valid key" in response.json["error"]
    assert clients.service.ask("/translate", body, headers=HEADERS).status == 200


def test_other_errors_have_the_form_of_libretranslate(clients: Clients) -> None:
    service = clients.service
    for response, status in (
        (service.ask("/translate"), 405),
        (service.ask("/translate", b"{"), 400),
        (service.ask("/translate", b"q" * 10_000_001), 413),
        (service.ask("/translate", {}, headers={"Host": "evil.example"}), 403),
        (service.ask("/languages", {}), 405),
    ):
        assert response.status == status
        assert response.json.keys() == {"error"}


def test_tokens_are_counted(clients: Clients) -> None:
    def count(side: str) -> float:
        text = clients.service.ask("/metrics", headers=HEADERS).body.decode()
        line = f'regard_tokens_total{{run="letters",side="{side}"}} '
        return float(text.partition(line)[2].partition("\n")[0] or 0)

    before = count("input"), count("output")
    clients.complete(prompt="a b c", max_tokens=7, n=2)
    assert (count("input"), count("output")) == (before[0] + 10, before[1] + 14)
