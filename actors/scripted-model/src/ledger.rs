//! The four roles of the signed ledger, played without a script: the task's lines are read as the commands of the small
//! chat (`read`, `write`, `append`, `search`, `run`), and what is said of them is what was seen. Deterministic: the same
//! request gets the same answer.
//!
//! A task may direct the play by words in brackets, so that every turn a run can take can be shown and tested:
//!
//! | in the objective | effect |
//! |---|---|
//! | `[reject once]`, `[reject]` | the critic rejects the first proposal, or every one |
//! | `[block once]`, `[block]` | the critic blocks the first proposal's intents, or all that it is shown |
//! | `[conditions]` | the critic approves under conditions, so it is shown every intent |
//! | `[challenge once]`, `[challenge]` | the critic challenges each claim once, or each time |
//! | `[concede]` | the executor concedes challenges |
//! | `[split]` | the planner makes a proposal of each line |

use serde_json::{Value, json};

use crate::chat::{self, Says};
use crate::transcript::{Entry, Transcript};

/// Forms the roles offer for their answers, by canonical name.
const FORMS: [&str; 7] = [
    "choir.ledger.propose",
    "choir.ledger.review",
    "choir.ledger.review_claims",
    "choir.ledger.claim",
    "choir.ledger.resolve",
    "choir.ledger.conclude",
    "choir.ledger.note",
];

/// Words by which a revision is known.
const REVISED: &str = "(revised)";

/// Bytes of a result that a claim quotes.
const QUOTE: usize = 300;

/// What is looked for where the task names no command.
const ANYTHING: &str = ".";

/// The answer of a role, if the request is one of a role: a tool by its canonical name, and arguments.
pub(crate) fn answer(transcript: &Transcript) -> Option<(String, Value)> {
    let offers = |name: &str| transcript.tools.iter().any(|tool| tool == name || *tool == wire(name));
    let asked = transcript.entries.iter().find_map(|entry| match entry {
        Entry::User(text) if text.contains("<task>") => Some(text.as_str()),
        _ => None,
    })?;
    // Where nothing has worked yet the executor is offered tools alone.
    let form = FORMS
        .into_iter()
        .find(|form| offers(form))
        .or_else(|| asked.contains("Carry out the proposal").then_some("choir.ledger.claim"))?;
    let task = Task { asked, objective: between(asked, "<task>\n", "\n</task>") };
    let call = match form {
        "choir.ledger.propose" => task.propose(),
        "choir.ledger.review" => task.review(),
        "choir.ledger.review_claims" => task.review_claims(),
        "choir.ledger.claim" | "choir.ledger.resolve" => {
            return Some(task.execute(transcript, &offers));
        }
        "choir.ledger.conclude" => task.conclude(),
        _ => task.note(),
    };
    Some((form.to_owned(), call))
}

fn wire(name: &str) -> String {
    name.replace('.', "_")
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let rest = text.split_once(from).map_or("", |(_, rest)| rest);
    rest.split_once(to).map_or(rest, |(inside, _)| inside)
}

struct Task<'a> {
    asked: &'a str,
    objective: &'a str,
}

/// A call that a line of the task stands for.
struct Step {
    line: String,
    tool: &'static str,
    arguments: Value,
}

impl Task<'_> {
    fn says(&self, directive: &str) -> bool {
        self.objective.contains(&format!("[{directive}]"))
    }

    /// The task's commands. A task without one is looked into by a search.
    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self
            .objective
            .lines()
            .filter_map(|line| {
                let line = without_directives(line);
                match chat::answer(&line, 0, None) {
                    Says::Call(tool, arguments) => Some(Step { line, tool, arguments }),
                    Says::Text(_) => None,
                }
            })
            .collect();
        if steps.is_empty() {
            let arguments = json!({ "pattern": ANYTHING, "max_results": 5 });
            steps.push(Step { line: format!("search {ANYTHING}"), tool: "choir.fs.search", arguments });
        }
        steps
    }

    fn propose(&self) -> Value {
        let again =
            self.asked.contains("The critic turned this down") || self.asked.contains("Its tools failed");
        let steps = self.steps();
        if again {
            // The other way is to look only; what the task names stays where it can.
            let tools: Vec<&str> = if self.says("block once") || self.says("reject once") {
                named(&steps)
            } else {
                vec!["choir.fs.search"]
            };
            let objective = format!("{} {REVISED}", without_directives(self.objective));
            return json!({ "proposals": [proposal(&objective, &tools)] });
        }
        let proposals: Vec<Value> = if self.says("split") {
            steps.iter().take(4).map(|step| proposal(&step.line, &[step.tool])).collect()
        } else {
            vec![proposal(&without_directives(self.objective), &named(&steps))]
        };
        json!({ "proposals": proposals })
    }

    fn review(&self) -> Value {
        let revised = self.asked.contains(REVISED);
        let intent = self.asked.contains("<intent>");
        let against = if intent {
            self.says("block") || (self.says("block once") && !revised)
        } else {
            self.says("reject") || (self.says("reject once") && !revised)
        };
        if against {
            let rationale = "the task asks this scripted critic to turn it down";
            return json!({ "decision": "reject", "risk": "high", "rationale": rationale });
        }
        let rationale = "it serves the task, and a scripted critic sees nothing against it";
        if self.says("conditions") && !intent {
            return json!({ "decision": "approve_with_conditions", "risk": "medium", "rationale": rationale,
                "conditions": ["every call is shown to the critic"] });
        }
        json!({ "decision": "approve", "risk": "low", "rationale": rationale })
    }

    fn review_claims(&self) -> Value {
        let mut reviews = Vec::new();
        for part in self.asked.split("<claim id=\"").skip(1) {
            let id = part.split('"').next().unwrap_or_default();
            let before = between(part, "", "</claim>").contains("You challenged it");
            let challenge = self.says("challenge") || (self.says("challenge once") && !before);
            reviews.push(if challenge {
                json!({ "claim_id": id, "decision": "challenge",
                    "reason": "the task asks this scripted critic to doubt it" })
            } else {
                json!({ "claim_id": id, "decision": "accept" })
            });
        }
        json!({ "reviews": reviews })
    }

    fn conclude(&self) -> Value {
        let claims = self.asked.matches("<claim id=\"").count();
        let disputed = self.asked.matches(", disputed)").count();
        let text = format!(
            "{claims} claims were issued, {disputed} of them disputed. A scripted model ran this task."
        );
        json!({ "verdict_text": text })
    }

    fn note(&self) -> Value {
        let report = between(self.asked, "<report>\n", "\n</report>");
        let first = report.lines().next().unwrap_or("nothing");
        json!({ "note": format!("The report says: {first}") })
    }

    fn execute(&self, transcript: &Transcript, offers: &dyn Fn(&str) -> bool) -> (String, Value) {
        let results = results(transcript);
        let worked = results.iter().filter(|result| result.worked).count();
        if offers("choir.ledger.resolve") {
            if self.says("concede") {
                let reason = "the task asks this scripted executor to concede";
                return ("choir.ledger.concede".to_owned(), json!({ "reason": reason }));
            }
            let claim = between(self.asked, "<claim id=\"", "\n</claim>");
            let text = claim.lines().nth(1).unwrap_or("it is as claimed");
            let evidence: Vec<&str> = results.iter().map(|result| result.execution.as_str()).collect();
            let again = json!({ "text": format!("{text} (looked at again)"), "confidence": 0.8, "evidence": evidence });
            return ("choir.ledger.resolve".to_owned(), again);
        }
        let offered: Vec<Step> = self.mine().into_iter().filter(|step| offers(step.tool)).collect();
        let next = offered.into_iter().nth(worked);
        let may_claim = offers("choir.ledger.claim");
        let failed = results.last().is_some_and(|result| !result.worked);
        match next {
            // What failed is tried again, until there is something to claim or no tool left.
            Some(step) if !(may_claim && failed) => (step.tool.to_owned(), step.arguments),
            _ if may_claim => {
                let claims: Vec<Value> = results.iter().take(16).map(Seen::claim).collect();
                ("choir.ledger.claim".to_owned(), json!({ "claims": claims }))
            }
            _ => ("choir.fs.search".to_owned(), json!({ "pattern": ANYTHING, "max_results": 5 })),
        }
    }

    /// The steps of the proposal at hand: all of them, or the one it was split off for; a search where it may do no more.
    fn mine(&self) -> Vec<Step> {
        let proposal = between(self.asked, "<proposal>", "</proposal>");
        let objective = between(proposal, "Objective: ", "\nRequired tools").trim();
        let tools = between(proposal, "Required tools:\n", "\nExpected");
        let all = self.steps();
        let has = |step: &Step| tools.contains(step.tool);
        if all.iter().any(has) {
            let split = self.says("split");
            return all.into_iter().filter(|s| has(s) && (!split || objective.contains(&s.line))).collect();
        }
        let arguments = json!({ "pattern": ANYTHING, "max_results": 5 });
        vec![Step { line: String::new(), tool: "choir.fs.search", arguments }]
    }
}

fn named(steps: &[Step]) -> Vec<&'static str> {
    let mut tools: Vec<&str> = Vec::new();
    for step in steps {
        if !tools.contains(&step.tool) {
            tools.push(step.tool);
        }
    }
    tools
}

fn proposal(objective: &str, tools: &[&str]) -> Value {
    let evidence: Vec<String> = tools.iter().map(|tool| format!("the output of {tool}")).collect();
    json!({ "objective": objective, "assumptions": ["the workspace is as it is found"], "required_tools": tools,
        "expected_evidence": evidence })
}

fn without_directives(text: &str) -> String {
    let mut rest = text;
    let mut left = String::new();
    while let Some((before, after)) = rest.split_once('[') {
        let Some((_, after)) = after.split_once(']') else { break };
        left.push_str(before);
        rest = after;
    }
    left.push_str(rest);
    left.trim().to_owned()
}

/// A result as the roles show it.
struct Seen {
    execution: String,
    worked: bool,
    text: String,
}

fn results(transcript: &Transcript) -> Vec<Seen> {
    let called = transcript.entries.iter().filter_map(|entry| match entry {
        Entry::Called(results) => Some(results),
        _ => None,
    });
    called
        .flatten()
        .filter_map(|result| {
            let value: Value = serde_json::from_str(result).ok()?;
            let execution = value.get("execution")?.as_str()?.to_owned();
            let result = value.get("result")?;
            let worked = result.get("status").and_then(Value::as_str) == Some("success");
            let output = result.get("output").unwrap_or(result).to_string();
            Some(Seen { execution, worked, text: output })
        })
        .collect()
}

impl Seen {
    fn claim(&self) -> Value {
        let mut text = self.text.clone();
        if text.len() > QUOTE {
            while text.len() > QUOTE {
                text.pop();
            }
            text.push_str(" ...");
        }
        let (how, confidence) = if self.worked { ("gave", 0.9) } else { ("failed with", 0.6) };
        json!({ "text": format!("{} {how} {text}", self.execution), "confidence": confidence,
            "evidence": [self.execution] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::chain::Digest;

    fn asked(entries: Vec<Entry>, tools: &[&str]) -> (String, Value) {
        let tools = tools.iter().map(|tool| wire(tool)).collect();
        let transcript = Transcript { model: "m".into(), entries, tools, messages: 1, digest: Digest::ZERO };
        answer(&transcript).unwrap()
    }

    fn user(objective: &str, more: &str) -> Entry {
        Entry::User(format!("<task>\n{objective}\n</task>\n{more}"))
    }

    #[test]
    fn the_planner_proposes_the_tools_that_the_lines_name() {
        let (tool, arguments) =
            asked(vec![user("read a.txt\nrun ls", "Propose how to do the task.")], &["choir.ledger.propose"]);
        assert_eq!(tool, "choir.ledger.propose");
        assert_eq!(arguments["proposals"][0]["required_tools"], json!(["choir.fs.read", "choir.exec"]));
        let (_, split) = asked(vec![user("read a\nrun ls\n[split]", "")], &["choir.ledger.propose"]);
        assert_eq!(split["proposals"].as_array().unwrap().len(), 2);
        let (_, sentence) = asked(vec![user("Produce a signed run.", "")], &["choir.ledger.propose"]);
        assert_eq!(sentence["proposals"][0]["required_tools"], json!(["choir.fs.search"]));
    }

    #[test]
    fn the_executor_runs_each_line_and_then_claims_what_it_saw() {
        let proposal = "<proposal>\nObjective: x\nRequired tools:\n- choir.fs.read\nExpected evidence:\n</proposal>\nCarry out the proposal";
        let tools = ["choir.fs.read", "choir.ledger.claim"];
        let first = asked(vec![user("read a\nread b", proposal)], &tools[..1]);
        assert_eq!(first, ("choir.fs.read".to_owned(), json!({ "path": "a" })));
        let result = |n: u32| {
            Entry::Called(vec![
                json!({ "execution": format!("exec_{n}"), "result": { "status": "success", "output": { "content": "x" } } })
                    .to_string(),
            ])
        };
        let second = asked(vec![user("read a\nread b", proposal), result(1)], &tools);
        assert_eq!(second.1, json!({ "path": "b" }));
        let (tool, claims) = asked(vec![user("read a\nread b", proposal), result(1), result(2)], &tools);
        assert_eq!(tool, "choir.ledger.claim");
        assert_eq!(claims["claims"][1]["evidence"], json!(["exec_2"]));
    }

    #[test]
    fn the_critic_follows_the_directives_and_else_approves() {
        let review =
            |objective: &str, more: &str| asked(vec![user(objective, more)], &["choir.ledger.review"]).1;
        assert_eq!(review("read a", "")["decision"], "approve");
        assert_eq!(review("read a [reject once]", "")["decision"], "reject");
        assert_eq!(review("read a [reject once]", "Objective: read a (revised)")["decision"], "approve");
        assert_eq!(review("read a [block]", "<intent>")["decision"], "reject");
        assert_eq!(review("read a [conditions]", "")["decision"], "approve_with_conditions");
        let claims = "<claim id=\"claim_1\">\nx\n</claim>\n<claim id=\"claim_2\">\ny\nYou challenged it 1 times\n</claim>";
        let (_, said) = asked(vec![user("x [challenge once]", claims)], &["choir.ledger.review_claims"]);
        let decisions: Vec<_> =
            said["reviews"].as_array().unwrap().iter().map(|r| r["decision"].clone()).collect();
        assert_eq!(decisions, [json!("challenge"), json!("accept")]);
    }

    #[test]
    fn a_request_that_is_no_roles_is_left_alone() {
        let transcript = Transcript {
            model: "m".into(),
            entries: vec![Entry::User("read a".into())],
            tools: vec!["choir_fs_read".into()],
            messages: 1,
            digest: Digest::ZERO,
        };
        assert!(answer(&transcript).is_none());
    }
}
