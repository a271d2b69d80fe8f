"""What counts as the same, and which differences are on purpose: each with its reason."""
import re

from sides import Clock, params


def same(a, b):
    """JSON equality: 2.0 is 2, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def unordered(answer):
    """The hints that a routing decision used are listed in no particular order."""
    found = answer.get("result")
    rationale = found.get("rationale") if isinstance(found, dict) else None
    if isinstance(rationale, dict) and isinstance(rationale.get("hints_used"), list):
        rationale["hints_used"] = sorted(rationale["hints_used"])
    return answer


class Difference(Exception):
    pass


# Differences on purpose: name, reason, and whether this one is it. `restore` says what becomes of the reference's own
# state: it is put back, because ours has changed nothing.
def code(answer):
    return answer.get("error", {}).get("code")


def message(answer):
    return answer.get("error", {}).get("message", "")


SHAPE = re.compile(
    r"^\S+( must be (an? |shadow|human|any |at most|names|one of|task,)| is not )|^Unknown participant|needs |at most|asked of 1|goes to one")

ALLOWED = [
    # A value of the wrong type, a text that is no URI, mode, type, range or deadline: the reference takes it, ends in an
    # internal error, or looks at it later than we do (digest 4.2, "safe to be strict about").
    ("shape", lambda call, theirs, ours, hostile: hostile and code(ours) == -32602 and SHAPE.search(message(ours))),
    # An internal error of the reference is one of its faults: no input reaches -32603 here.
    ("internal", lambda call, theirs, ours, hostile: code(theirs) == -32603 and code(ours) not in (None, -32603)),
    # The words of these refusals are ours; the codes are the same.
    ("words", lambda call, theirs, ours, hostile: code(theirs) == code(ours) is not None
        and (words(message(theirs), message(ours)) if same(theirs["error"].get("data"), ours["error"].get("data"))
             else False) or hostile and code(theirs) == code(ours) == -32602),
    # An id that is in use is not given to a second object: it would wipe votes, answers and tasks (digest 4.2).
    ("reused id", lambda call, theirs, ours, hostile: code(ours) == -32602 and "result" in theirs
        and call["method"] in ("whisper.ask", "deliberate.open", "handoff.propose") and "in use" in message(ours)),
    # Nor is a key's name given to a second key: the reference would never find the second one.
    ("reused kid", lambda call, theirs, ours, hostile: code(ours) == -32602 and call["method"] == "participant.rotate_key"
        and "has a key" in message(ours)),
    # A handoff passes on what its proposer holds: a task that has gone to somebody else since is not taken from them.
    ("stale handoff", lambda call, theirs, ours, hostile: code(ours) == -32050 and call["method"] == "handoff.accept"),
    # A task's thread holds the handoffs and deliberations that are about it, although they do not name it as `task_id`.
    ("thread of a task", lambda call, theirs, ours, hostile: bool((params(call).get("filter") or {}).get("task_id"))
        and thread(call, theirs, ours)),
    # Deadlines hold at the moment of answering, voting and deciding, not only when a timer has run (digest 4.2).
    ("deadline", lambda call, theirs, ours, hostile: code(ours) in (-32013, -32021, -32032)
        and call["method"].split(".")[0] in ("decide", "abstain", "whisper", "deliberate")),
]



def thread(call, theirs, ours):
    """Whether ours is theirs and more, all of it about a task by way of a handoff or a deliberation."""
    if call.get("method") != "audit.read" or "result" not in theirs or "result" not in ours:
        return False
    known = [entry["seq"] for entry in theirs["result"]["entries"]]
    more = [entry for entry in ours["result"]["entries"] if entry["seq"] not in known]
    kept = [entry for entry in ours["result"]["entries"] if entry["seq"] in known]
    return same(theirs["result"]["entries"], kept) and all(
        (entry.get("envelope") or entry.get("request"))["method"].split(".")[0] in ("handoff", "deliberate") for entry in more)


# Differences after which the two states have nothing more to say to each other: the sequence ends well.
ENDS = [
    # A review whose deadline has passed is over: it may be requested anew, with other content or another rule.
    ("lapsed review requested anew", lambda call, theirs, ours, before: call["method"] == "review.request" and "result" in ours
        and before is not None and before.review is not None and before.review.deadline is not None
        and before.review.deadline <= Clock.iso()),
    # A key is revoked from its first revocation on; in the reference a second one moves the moment, so that signatures
    # between the two become good.
    ("a key revoked again", lambda call, theirs, ours, before: call["method"] == "participant.revoke_key"
        and "result" in ours and "result" in theirs and ours["result"]["revoked_at"] < theirs["result"]["revoked_at"]),
]


# The same answers, after which the two go different ways.
PARTINGS = [
    # Handed in after its review's deadline, a task gets a new review; the reference keeps one nobody can tell the end of.
    ("handed in after a lapsed review", lambda call, ours, before, workspace: call["method"] == "task.complete"
        and ours.get("result", {}).get("state") == "review_requested" and before is not None and before.review is not None
        and before.review.deadline is not None and before.review.deadline <= Clock.iso()),
    # Handed in anew, a task's earlier approvals count no more: they were about another artefact (digest 4.3).
    ("handed in anew after approvals", lambda call, ours, before, workspace: call["method"] == "task.complete"
        and ours.get("result", {}).get("state") == "review_requested" and before is not None and before.review is not None
        and any(d.get("kind") == "approve" for d in before.review.decisions)),
    # A key that was rotated out is out from then on; in the reference, rotating it once more moves the moment, so that
    # signatures between the two become good.
    ("a key rotated out again", lambda call, ours, before, workspace: call["method"] == "participant.rotate_key"
        and "result" in ours and any(key.kid == params(call).get("old_kid") and key.valid_until is not None
                                     for key in workspace.members[params(call)["from"]].keys)),
]


class End(Exception):
    pass


# Pairs of words for one refusal: the reference's beginning, and ours.
WORDS = [
    (r"No verify_scitt_receipt hook", r"This Coordinator keeps no transparency log"),
    (r"CHAP canonical|Non-finite", r"The call has no canonical form"),
    (r"scope must be one of", r"scope must be"),
    (r"new_ceiling must be one of", r"new_ceiling must be"),
    (r"Unsupported review rule", r"Unsupported review rule"),
    (r"A review is already open on this task with different", r"A review with other content"),
    (r"\S+ is advertised but", r"\S+ cannot be advertised"),
    (r"This task requires review\.", r"This task requires review:"),
    (r"Unknown participant: None", r"Unknown participant: (none named)?$"),
    (r"Unknown workspace", r"Unknown workspace"),
    (r"Illegal transition", r"Illegal transition"),
    (r"Unknown rule|invalid literal|could not convert|not enough|list index", r"Unknown"),
]


def words(theirs, ours):
    # What is not ASCII is quoted in Python's way by the reference, and as it is by ours.
    theirs = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), theirs)
    if theirs == ours:
        return True
    return any(re.match(a, theirs) and re.match(b, ours) for a, b in WORDS)
