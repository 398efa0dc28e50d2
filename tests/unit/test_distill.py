"""Distillation: which answers a student learns, and which lines are written."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.bulk.errors import BulkError, StoppedError
from dragoman_server.config import ServerConfig
from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.distill.choose import Candidate, candidate, closeness, merge
from dragoman_server.distill.lines import repeats, unfit
from dragoman_server.distill.options import DistillOptions
from dragoman_server.distill.run import Counts, distill
from dragoman_server.distill.teacher import SearchWishes
from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.corpus import read_pairs
from tests.support.bundles import SHIPPED_G2P, altered_copy, edit_manifest

WORDS = "transformer speech dragoman interpreter corpus wednesday the colonel queue a".split()
EOS, LENGTH = FinishReason.EOS, FinishReason.LENGTH


def run(
    folder: Path, sources: str | bytes, teachers: Sequence[Path] = (SHIPPED_G2P,), **options: Any
) -> tuple[list[list[str]], Counts, list[str]]:
    """Distills, and returns the lines of the output by columns, the counts, and the listed lines."""
    given = folder / options.pop("name", "sources.txt")
    given.write_bytes(sources.encode() if isinstance(sources, str) else sources)
    out = folder / "out.tsv"
    config = ServerConfig(engines=2, max_rows=16)
    counts = distill(DistillOptions(teachers, given, out, restart=True, **options), config, lambda: False)
    listed = out.with_name("out.tsv.bad_lines.txt")
    bad = listed.read_text().replace(f"{given}:", "").splitlines() if listed.exists() else []
    read = BadLines("skip")
    pairs = read_pairs([out], read)  # the trainer takes every line
    assert read.lines == []
    lines = [line.split("\t") for line in out.read_text().splitlines()]
    assert [[pair.source, pair.target] for pair in pairs] == lines
    return lines, counts, bad


def test_every_line_is_answered_in_order_or_listed(tmp_path: Path) -> None:
    bad = b"\n\xff\n  \nx\ty\nhi</s>\nna\xc2\x85me\nWed nesday\n" + b"a" * 100 + b"\n"
    text = "\n".join(WORDS).encode() + b"\n" + bad + "\n".join(WORDS[::-1]).encode()
    lines, counts, listed = run(tmp_path, text, window=7)
    assert [source for source, _ in lines] == [*WORDS, *WORDS[::-1]]
    assert lines[0] == ["transformer", "T R AE N S F AO R M ER"]
    assert [target for _, target in lines[10:]] == [target for _, target in lines[9::-1]]
    assert counts == Counts(28, 20, 8)
    unknown = "(counted from 0), which is not in the model's vocabulary"
    assert listed == [
        "11: the source is empty",
        "12: the source is not valid UTF-8 at byte 1",
        "13: the source is blank",
        "14: the source contains U+0009",
        "15: the source contains the reserved token </s>",
        "16: the source contains U+0085",
        f"17: the source has the character ' ' (U+0020) at position 3 {unknown}",
        "18: the source has 101 tokens, the end token included, but the model reads at most 64",
    ]
    assert counts.summary(tmp_path / "o") == (
        f"{tmp_path / 'o'}: 20 lines from 28; without 8 bad sources (listed in {tmp_path / 'o'}.bad_lines.txt)"
    )


def test_what_is_written_of_the_candidates(tmp_path: Path) -> None:
    text = "\n".join(WORDS)
    greedy, *_ = run(tmp_path, text, search=SearchWishes(beam_size=1))
    best, *_ = run(tmp_path, text)
    kept, counts, _ = run(tmp_path, text, search=SearchWishes(candidates=3), keep=3, swap=True, tag="<BT>")
    assert [source for source, _ in greedy] == WORDS
    assert len(kept) == counts.written > 20
    first = {source: target for target, source in reversed(kept)}
    assert first == {source: f"<BT> {target}" for source, target in best}
    cut, counts, listed = run(tmp_path, text, search=SearchWishes(max_new_tokens=4))
    assert [source for source, _ in cut] == [source for source, target in best if len(target.split()) < 4]
    assert listed[0] == "1: the answer is cut off by the length limit"
    assert sum(counts.left_out.values()) == len(WORDS) - len(cut)


def test_the_closest_candidate_to_the_reference(tmp_path: Path) -> None:
    best, *_ = run(tmp_path, "\n".join(WORDS))
    beams, *_ = run(tmp_path, "\n".join(WORDS), search=SearchWishes(5), keep=5)
    second = {source: target for source, target in beams[::-1] if [source, target] not in best}  # the best but one
    text = "".join(f"{word}\t{second[word]}\n" for word in WORDS) + "speech\n"
    for metric in ("bleu", "chrf"):
        lines, _, listed = run(tmp_path, text, name="pairs.tsv", search=SearchWishes(5), choose=metric)
        assert lines == [[word, second[word]] for word in WORDS]
        assert listed == ["11: the source has no reference beside it"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"search": SearchWishes(3, beam_size=2)}, "--candidates and --keep can be at most --beam-size, which is 2"),
        (
            {"search": SearchWishes(length_penalty=99)},
            "--length-penalty is 99, but must be at least -10 and at most 10",
        ),
        (
            {"search": SearchWishes(max_new_tokens=100)},
            "--max-new-tokens is 100, but must be from 1 to 64",
        ),
        ({"source_language": "de"}, "--source-language is set, but no teacher has a choice of source languages"),
        ({"teachers": [Path("/")]}, "/ is not a bundle: it has no manifest.json"),
    ],
)
def test_options_that_a_teacher_can_not_follow_leave_no_files(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BulkError, match=re.escape(sentence)):
        run(tmp_path, "speech", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["sources.txt"]


def test_the_sources_are_never_overwritten(tmp_path: Path) -> None:
    sources = tmp_path / "out.tsv"
    sources.write_text("speech\n")
    with pytest.raises(BulkError, match=r"out.tsv is one of the sources; name another file to write"):
        run(tmp_path, "speech\n", name="out.tsv")
    assert sources.read_text() == "speech\n"


def test_no_file_is_overwritten_that_keeps_the_state_of_an_output(tmp_path: Path) -> None:
    with pytest.raises(BulkError, match=r"out.tsv.partial is where work on .*out.tsv keeps its state; name another"):
        run(tmp_path, "speech\n", name="out.tsv.partial")
    assert (tmp_path / "out.tsv.partial").read_text() == "speech\n"


def test_file_names_need_not_be_utf_8(tmp_path: Path) -> None:
    lines, _, listed = run(tmp_path, "speech\n\n", name=os.fsdecode(b"donn\xe9es.txt"))
    assert lines == [["speech", "S P IY CH"]]
    assert listed == [rf"{tmp_path}/donn\udce9es.txt:2: the source is empty"]


def test_several_teachers_choose_by_the_mean_of_their_scores(tmp_path: Path) -> None:
    """The same teacher twice chooses what it alone does; one that writes other letters finds nothing to score."""
    text = "\n".join(WORDS)
    alone, *_ = run(tmp_path, text)
    twice, counts, _ = run(tmp_path, text, [SHIPPED_G2P] * 2, search=SearchWishes(None))
    assert twice == alone
    assert counts == Counts(10, 10)
    other = altered_copy(SHIPPED_G2P, tmp_path / "other", _rename_targets)
    lines, counts, listed = run(tmp_path, text, [SHIPPED_G2P, other], search=SearchWishes(2))
    assert all({"T", "N", "AH"}.isdisjoint(target.split()) for _, target in lines)
    assert counts.left_out == {"no answer can be scored by every teacher": len(listed)}
    assert len(listed) == len(WORDS) - len(lines) > 0


def _rename_targets(bundle: Path) -> None:
    tokenizer = bundle / "target_tokenizer.json"
    text = tokenizer.read_text()
    for phone in ("T", "N", "AH"):
        text = text.replace(f'"{phone}"', f'"other {phone}"')
    tokenizer.write_text(text)


def test_languages_are_those_of_the_teacher(tmp_path: Path) -> None:
    """A target language that is the first token of every answer counts neither in the text nor in scores."""
    forced = {
        "text": {"after": [3], "languages": {"en": {"target": 5}, "de": {"target": 6}}, "forces_language": True},
        "format_version": 4,
    }
    bundle = altered_copy(SHIPPED_G2P, tmp_path / "forced", edit_manifest(lambda document: document.update(forced)))
    with pytest.raises(BulkError, match=r"--target-language is missing: the model needs a target language, one of"):
        run(tmp_path, "speech", [bundle])
    lines, *_ = run(tmp_path, "speech", [bundle], target_language="de")
    several, *_ = run(tmp_path, "speech", [bundle] * 2, target_language="de", search=SearchWishes(5))
    assert several == lines == [["speech", "AH S P IY CH"]]
    both, *_ = run(tmp_path, "speech", [SHIPPED_G2P, bundle], target_language="de", search=SearchWishes(5))
    assert both == [["speech", "S P IY CH"]]  # the other one takes no language


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    whole, *_ = run(tmp_path, "\n".join(WORDS))
    out = tmp_path / "stopped.tsv"
    options = DistillOptions([SHIPPED_G2P], tmp_path / "sources.txt", out, window=2)
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    with pytest.raises(StoppedError):
        distill(options, ServerConfig(), should_stop)
    counts = distill(options, ServerConfig(), lambda: False)
    assert [line.split("\t") for line in out.read_text().splitlines()] == whole
    assert counts == distill(options, ServerConfig(), lambda: False) == Counts(10, 10)


@pytest.mark.parametrize(
    ("ids", "reason", "text", "fault"),
    [
        ([5, 6], EOS, " a\tb\r\n\u2028c ", ""),
        ([5, 6, 7], LENGTH, "a b c", "the answer is cut off by the length limit"),
        ([5, 6, 7], EOS, "a b c", "the answer is cut off by the length limit"),  # forced to end
        ([], EOS, "", "the answer is empty"),
        ([5], EOS, "\u200b", "the answer is blank"),
        ([5], EOS, "a \ufffd", "the answer contains U+FFFD REPLACEMENT CHARACTER"),
        ([5], EOS, "a <unk>", "the answer contains the reserved token <unk>"),
    ],
)
def test_the_faults_of_answers(ids: list[int], reason: FinishReason, text: str, fault: str) -> None:
    judged = candidate(HypothesisResult(ids, [], reason), text, [4, 3], 3)
    assert judged.fault == fault
    assert fault or judged.text == "a b c"


def test_answers_that_repeat_themselves() -> None:
    assert repeats([9] * 12)
    assert not repeats([9] * 11)
    assert repeats([1, 2, *[5, 6, 7] * 4, 8])
    assert not repeats([5, 6, 7] * 3)
    assert not repeats([5, 6, 7] * 3 + [5, 6, 8])
    again = HypothesisResult([5, 6, 7] * 4, [], EOS)
    assert candidate(again, "x", [4, 3], 64).fault == "the answer repeats itself"
    assert candidate(again, "x", [9] * 12, 64).fault == ""  # as the source does
    assert unfit("ha ha ha") == ""


def test_candidates_of_several_teachers_alternate() -> None:
    a, b, c, cut = (Candidate(*fields) for fields in (("a", ""), ("b", ""), ("c", ""), ("a", "cut")))
    assert merge([[a, b], [c]]) == [a, c, b]
    assert merge([[cut, b], [a]]) == [a, b]
    assert merge([[], []]) == []


def test_sacrebleu_is_asked_for_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(BulkError, match="--choose bleu needs the package sacrebleu: pip install sacrebleu"):
        closeness("bleu")
