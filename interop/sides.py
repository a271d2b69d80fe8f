"""The two that are compared: the reference in this process, with a clock and ids that are given to it, and ours at the
other end of a pipe."""
import copy
import datetime
import hashlib
import json
import subprocess
import types

import chap_coordinator.coordinator as reference
from chap_coordinator import Coordinator, CoordinatorOptions
from chap_coordinator.canonical import canonicalize


class Clock:
    millis = 1_790_000_000_000

    @classmethod
    def iso(cls):
        moment = datetime.datetime.fromtimestamp(cls.millis / 1000, tz=datetime.timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class Now(datetime.datetime):
    """What the reference takes for the time of day in its step-up check."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(Clock.millis / 1000, tz=tz)


reference._dt = types.SimpleNamespace(datetime=Now, timezone=datetime.timezone)

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(millis, bits):
    value = (millis << 80) | (bits & ((1 << 80) - 1))
    return "".join(CROCKFORD[(value >> (5 * place)) & 31] for place in range(25, -1, -1))


class Ids:
    salt = 0
    made = 0

    def _next(self, prefix):
        Ids.made += 1
        return prefix + ulid(Clock.millis, Ids.salt * 1000 + Ids.made)

    def task_id(self):
        return self._next("tsk_")

    def artefact_id(self):
        return self._next("art_")

    def deliberation_id(self):
        return self._next("dlb_")

    def handoff_id(self):
        return self._next("hnd_")

    def workspace_id(self):
        return f"wsp_{Ids.salt:026d}"


def moment(text):
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


class Theirs:
    def __init__(self, settings):
        self.attested = {}
        options = CoordinatorOptions(
            require_signatures=settings.get("require_signatures", False),
            enforce_step_up=settings.get("enforce_step_up", False),
            require_read_membership=settings.get("require_read_membership", False),
            enable_chain=settings.get("enable_chain", False),
            max_envelope_bytes=settings.get("max_envelope_bytes", 1_048_576),
            verify_oidc_token=(lambda _: self.attested.get("oidc")) if settings.get("verify_oidc") else None,
            verify_vc=(lambda _: self.attested.get("vc")) if settings.get("verify_vc") else None,
        )
        self.coordinator = Coordinator(options)
        self.coordinator.ids = Ids()
        self.coordinator._advance_clock = Clock.iso
        append = self.coordinator._append_entry
        # Our log keeps the digest of a token where theirs keeps the token: so that the chains stay comparable, theirs is
        # given what ours keeps.
        self.coordinator._append_entry = lambda ws, **entry: append(ws, **{k: withheld(v) for k, v in entry.items()})

    def call(self, envelope):
        Ids.made = 0
        return self.coordinator.dispatch(copy.deepcopy(envelope))

    def keep(self):
        self.kept = copy.deepcopy(self.coordinator.workspaces)

    def restore(self):
        self.coordinator.workspaces.clear()
        self.coordinator.workspaces.update(self.kept)

    def lapse(self):
        # Ours fire in the order in which they are due; theirs are made to.
        for workspace in self.coordinator.workspaces.values():
            every = workspace.whispers
            for whisper in sorted(every.values(), key=lambda w: (moment(w.asked_at) + w.deadline_ms, w.id)):
                workspace.whispers = {whisper.id: whisper}
                self.coordinator.check_whisper_lapses(workspace.id)
            workspace.whispers = every


class Ours:
    def __init__(self, program):
        self.child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def line(self, text):
        self.child.stdin.write(text.encode("utf-8", "surrogatepass") + b"\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise SystemExit("dispatch ended")
        return json.loads(answer)

    def control(self, **what):
        self.line(json.dumps({"$" + name: value for name, value in what.items()}))

    def call(self, envelope):
        return self.line(json.dumps(envelope))


def params(call):
    found = call.get("params") if isinstance(call, dict) else None
    return found if isinstance(found, dict) else {}


def withheld(call):
    """A call as our log keeps it: with the digest of a token in the token's place."""
    if isinstance(call, dict) and call.get("method") == "participant.join":
        call = copy.deepcopy(call)
        found = params(call)
        for name in ("oidc_token", "vc_presentation"):
            value = found.get(name)
            if value is not None:
                data = value.encode() if isinstance(value, str) else canonicalize(value)
                found[name] = "sha256:" + hashlib.sha256(data).hexdigest()
    return call
