"""The page in a real browser: upload, playback, editing, recording and accessibility."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

import choral
from choral import formats
from choral.speakers.networks import SpeakerNetworks
from media_files import RATE, read_clip, wav
from serve_process import ServeProcess

WITHIN_MS = 60_000
# What a browser records in real time differs a little each time, and so do its commas and the ends of its turns.
SPOKEN = re.compile("fellow America|your country")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser(chromium_program: str, jfk: Path) -> Iterator[Browser]:
    """A browser whose fake microphone plays the clip."""
    arguments = [
        "--no-sandbox",
        "--autoplay-policy=no-user-gesture-required",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={jfk}%noloop",
    ]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_program, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser, job_server: ServeProcess) -> Iterator[Callable[..., Page]]:
    """Open pages; an error or warning in the browser's console fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_one(**settings: object) -> Page:
        context = browser.new_context(base_url=job_server.url, reduced_motion="reduce", **settings)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto("/")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def require_accessible(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def words_of(transcript: choral.Transcript) -> list[str]:
    return [word.text.strip() for word in transcript.words]


def test_upload_play_edit_download_remove(
    open_page: Callable[..., Page], jfk: Path, jfk_transcript: choral.Transcript
) -> None:
    page = open_page(color_scheme="light")
    require_accessible(page)
    page.set_input_files("#files", jfk)
    expect(page.locator("#edit")).to_be_enabled(timeout=WITHIN_MS)
    assert page.locator(".word").all_inner_texts() == words_of(jfk_transcript)
    expect(page.locator("#facts")).to_contain_text("English · 0:11")
    require_accessible(page)

    with page.expect_download() as taken:
        page.get_by_role("button", name="Download subtitles as srt").click()
    assert taken.value.suggested_filename == f"{jfk.stem}.srt"
    assert taken.value.path().read_text() == formats.srt(jfk_transcript)

    word = jfk_transcript.words[8]
    page.locator(".word").nth(8).click()
    times = page.wait_for_function(
        "() => { const a = document.querySelector('audio'); return !a.seeking && a.currentTime }"
    )
    assert 0 <= times.json_value() - word.start < 1.0
    expect(page.locator(".word.is-spoken")).to_have_count(1)
    page.evaluate("document.querySelector('audio').pause()")

    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name=re.compile("Text from 0:00")).first.fill("And so, my dear fellow Americans")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#facts")).to_contain_text("edited")
    page.reload()
    page.get_by_role("button", name=jfk.name).click()
    expect(page.locator("#text p").first).to_have_text("And so, my dear fellow Americans")
    expect(page.locator("#player")).to_be_visible()  # the sound was kept on this device
    assert download(page, "Download as plain text").startswith("And so, my dear fellow Americans\n")

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#list-empty")).to_be_visible()
    page.reload()
    expect(page.locator("#list-empty")).to_be_visible()


def test_phone_dark_mode_keyboard_and_invalid_audio(open_page: Callable[..., Page], jfk: Path, tmp_path: Path) -> None:
    page = open_page(color_scheme="dark", viewport=PHONE)
    letter = tmp_path / "letter.mp3"
    letter.write_text("no sound at all " * 50)
    page.set_input_files("#files", [letter])
    expect(page.locator("#problem")).to_contain_text("letter.mp3")
    page.set_input_files("#files", [jfk])
    expect(page.locator("#edit")).to_be_enabled(timeout=WITHIN_MS)
    require_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.focus("#text")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    chosen = float(page.locator(".word.is-chosen").get_attribute("data-start") or "nan")
    page.keyboard.press("Enter")
    page.wait_for_function("start => document.querySelector('audio').currentTime >= start", arg=chosen)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_speakers_are_named_merged_and_exported(
    open_page: Callable[..., Page], jfk: Path, speech_clips: list[Path], networks: SpeakerNetworks, tmp_path: Path
) -> None:
    page = open_page(color_scheme="dark")
    page.get_by_text("Options").click()
    page.get_by_label("Tell speakers apart").check()
    page.get_by_label("Number of speakers").fill("2")
    voices = tmp_path / "voices.wav"
    voices.write_bytes(wav(np.concatenate([read_clip(jfk)[-5 * RATE :], read_clip(speech_clips[0])])))
    page.set_input_files("#files", voices)
    expect(page.locator("#edit")).to_be_enabled(timeout=WITHIN_MS)
    assert page.locator("#text .speaker").all_inner_texts() == ["Speaker 1", "Speaker 2"]
    colours = {said.evaluate("said => getComputedStyle(said).borderLeftColor") for said in page.locator(".said").all()}
    assert len(colours) == 2
    assert "\nSpeaker 2: " in download(page, "Download subtitles as srt")  # the server's own file
    job_id = page.request.get("/v1/jobs").json()["data"][0]["id"]
    turns = page.request.get(f"/v1/jobs/{job_id}?response_format=rttm").text().splitlines()
    assert [line.split()[1] for line in turns] == ["voices"] * len(turns)
    assert {line.split()[7] for line in turns} == {"Speaker_1", "Speaker_2"}
    require_accessible(page)

    page.get_by_role("button", name="Speaker 1").click()
    require_accessible(page)
    page.get_by_role("textbox", name="Name").fill("Mr <President>")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#text .speaker").first).to_have_text("Mr <President>")
    expect(page.locator("#facts")).to_contain_text("edited")
    assert "\nMr <President>: " in download(page, "Download subtitles as srt")
    assert "\n<v Mr &lt;President&gt;>" in download(page, "Download subtitles as vtt")
    assert download(page, "Download as plain text").startswith("Mr <President>: ")
    segments = json.loads(download(page, "Download as json"))["segments"]
    assert {segment["speaker"] for segment in segments} == {"Mr <President>", "Speaker 2"}
    assert segments[0]["words"][0]["speaker"] == "Mr <President>"

    page.reload()
    page.get_by_role("button", name=voices.name).click()
    page.get_by_role("button", name="Speaker 2").click()
    page.get_by_label("The same person as").select_option("Mr <President>")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#text .speaker")).to_have_text(["Mr <President>"])
    assert page.locator("#speakers-list button").all_inner_texts() == ["Mr <President>"]


def download(page: Page, button: str) -> str:
    with page.expect_download() as taken:
        page.get_by_role("button", name=button).click()
    return taken.value.path().read_text()


def test_microphone_recording_shows_live_text(open_page: Callable[..., Page], networks: SpeakerNetworks) -> None:
    page = open_page()
    page.get_by_text("Options").click()
    page.get_by_label("Tell speakers apart").check()
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#text")).to_contain_text(SPOKEN, timeout=WITHIN_MS)
    expect(page.locator(".is-live .speaker")).to_have_text(["Speaker 1"], timeout=WITHIN_MS)
    require_accessible(page)
    stop_and_read(page)
    expect(page.locator(".is-live")).to_have_count(0)
    expect(page.locator("#clock")).to_have_text(re.compile(r"0:00 / 0:\d\d"))


def test_recording_continues_without_live_text(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.route_web_socket(re.compile("/v1/realtime"), lambda socket: socket.close())
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#notice-text")).to_contain_text("The recording continues")
    expect(page.get_by_role("button", name="Stop · 0:05")).to_be_visible(timeout=WITHIN_MS)
    stop_and_read(page)


def test_cancelled_recording_is_discarded_after_confirmation(open_page: Callable[..., Page]) -> None:
    page = open_page()
    answers = iter([False, True])
    page.on("dialog", lambda dialog: dialog.accept() if next(answers) else dialog.dismiss())
    page.get_by_role("button", name="Record").click()
    expect(page.get_by_role("button", name=re.compile("Stop · 0:0"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name=re.compile("Stop · 0:0"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Record")).to_be_visible()
    expect(page.locator("#list-empty")).to_be_visible()


def stop_and_read(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#edit")).to_be_enabled(timeout=WITHIN_MS)
    expect(page.locator("#text")).to_contain_text(SPOKEN)


def test_connect_panel_has_lines_that_work(open_page: Callable[..., Page], job_server: ServeProcess, jfk: Path) -> None:
    """For each app the address of this server; the lines for curl and Python are run as they are."""
    page = open_page(viewport=PHONE)
    page.get_by_role("button", name="Connect").click()
    lines = page.locator("#connect-lines")
    apps = page.locator("#connect-app option").all_text_contents()
    assert {"Open WebUI", "Home Assistant", "LiveKit", "Pipecat", "n8n", "Bazarr"} < set(apps)
    shown = {}
    for app in apps:
        page.select_option("#connect-app", app)
        shown[app] = lines.inner_text()
        assert ("127.0.0.1" if app == "Home Assistant" else job_server.url) in shown[app], app
    require_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for command in (["bash", "-c", shown["curl"]], [sys.executable, "-c", shown["Python"]]):
        command[-1] = command[-1].replace("talk.mp3", str(jfk))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert SPOKEN.search(done.stdout), done.stderr
    page.get_by_role("button", name="Close").last.click()
    expect(page.locator("#connect-dialog")).to_be_hidden()
    page.goto("/docs")
    page.locator("summary", has_text="/v1/audio/transcriptions").click()
    expect(page.locator("details[open] table").first).to_contain_text("response_format")
    require_accessible(page)


def test_page_loads_only_own_files(http: httpx.Client) -> None:
    page = http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        answer = http.get(name)
        assert (answer.status_code, name.startswith("/page/")) == (200, True), name
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", answer.content), name
    assert http.get("/page/..%2Froutes.py").status_code == 404
    assert http.get("/page/nothing.js").status_code == 404
