"""The agent's options from the kernel command line: defaults, bad values, duplicates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.config import AgentConfig, LogLevel, parse_duration

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def parse(text: str) -> AgentConfig:
    config, warnings = AgentConfig.from_cmdline(text)
    assert warnings == ()
    return config


def test_nothing_given_is_the_stated_default() -> None:
    config = parse("console=ttyS0 quiet panic=1")
    assert config == AgentConfig()
    assert (config.log_level, config.hotplug_timeout) == (LogLevel.INFO, 10.0)
    assert (config.server_addr, config.spool_size) == ("vsock://-1:1024", 64 * 1024 * 1024)


def test_every_option_at_once() -> None:
    config = parse(
        "agent.log=debug agent.log_vport=1025 agent.hotplug_timeout=500ms"
        " agent.server_addr=vsock://-1:2048 agent.container_pipe_size=64K agent.spool_size=16M"
        " agent.debug_console agent.debug_console_vport=1026"
    )
    assert config == AgentConfig(
        log_level=LogLevel.DEBUG,
        log_vport=1025,
        hotplug_timeout=0.5,
        server_addr="vsock://-1:2048",
        container_pipe_size=65536,
        spool_size=16 * 1024 * 1024,
        debug_console=True,
        debug_console_vport=1026,
    )


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("fatal", LogLevel.CRITICAL),
        ("panic", LogLevel.CRITICAL),
        ("critical", LogLevel.CRITICAL),
        ("error", LogLevel.ERROR),
        ("warn", LogLevel.WARNING),
        ("warning", LogLevel.WARNING),
        ("info", LogLevel.INFO),
        ("debug", LogLevel.DEBUG),
        ("trace", LogLevel.TRACE),
    ],
)
def test_kata_names_of_log_levels(word: str, level: LogLevel) -> None:
    assert parse(f"agent.log={word}").log_level is level


def test_words_inside_quotes_are_not_options() -> None:
    """A device-mapper table with spaces that happens to contain our option's text."""
    text = (
        'dm-mod.create="a,,,ro,0 1 verity agent.log=trace"  agent.log=debug\tagent.debug_console\n'
    )
    config = parse(text)
    assert config.log_level is LogLevel.DEBUG
    assert config.debug_console


def test_last_word_of_a_name_decides() -> None:
    assert parse("agent.log=debug agent.log=info").log_level is LogLevel.INFO


def test_words_after_two_dashes_belong_to_init() -> None:
    assert parse("agent.log=debug -- agent.log=trace").log_level is LogLevel.DEBUG


@pytest.mark.parametrize(
    "word",
    [
        "agent.hotplug_timeout=abc",
        "agent.hotplug_timeout=-1",
        "agent.hotplug_timeout=0",
        "agent.hotplug_timeout=99999999999",
        "agent.hotplug_timeout=",
        "agent.hotplug_timeout",
        "agent.hotplug_timeout=3m",
        "agent.hotplug_timeout=٣",
        "agent.log=",
        "agent.log",
        "agent.log=loud",
        "agent.log_vport=0",
        "agent.log_vport=4294967295",
        "agent.debug_console=maybe",
        "agent.container_pipe_size=-4096",
        "agent.container_pipe_size=4G",
        "agent.spool_size=0",
        "agent.spool_size=64X",
        "agent.server_addr=tcp://0.0.0.0:1",
        "agent.server_addr=vsock://-1:",
    ],
)
def test_a_bad_value_is_one_warning_and_the_default(word: str) -> None:
    config, warnings = AgentConfig.from_cmdline(word)
    assert config == AgentConfig()
    assert len(warnings) == 1
    assert word.partition("=")[0] in warnings[0]


def test_an_unknown_option_is_a_warning_and_the_rest_counts() -> None:
    config, warnings = AgentConfig.from_cmdline("agent.unknown=1 agent.log=debug")
    assert config == AgentConfig(log_level=LogLevel.DEBUG)
    assert len(warnings) == 1
    assert "agent.unknown" in warnings[0]


def test_words_that_are_not_ours_are_left_alone() -> None:
    assert parse("agentx.log=1 innkeeper.hostname=h systemd.unit=x") == AgentConfig()


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("3s", 3.0), ("500ms", 0.5), ("1.5s", 1.5), ("86400", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.text())
def test_no_text_stops_a_boot(text: str) -> None:
    config, _ = AgentConfig.from_cmdline(text)
    assert config.hotplug_timeout > 0


@given(st.sampled_from(["log", "hotplug_timeout", "server_addr", "spool_size", "x"]), st.text())
def test_no_value_stops_a_boot(name: str, value: str) -> None:
    config, _ = AgentConfig.from_cmdline(f'agent.{name}="{value}"')
    assert 0 < config.hotplug_timeout <= 86400
    assert config.spool_size > 0
