use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Value {
    json!({
        "workspaces": { "main-ws": { "path": "/srv/choir/main" }, "scratch": { "path": "scratch" } },
        "models": { "sonnet": {
            "provider": "openrouter", "model": "anthropic/x", "endpoint": "https://openrouter.ai/api/v1/",
            "temperature": 0.7, "reasoning_effort": null, "secret": "openrouter-key" } },
        "agents": { "agent-1": {
            "repo": { "url": "git@github.com:org/a.git", "ref": "main" },
            "defaults": { "workspace": "main-ws", "llm": "sonnet" } } },
    })
}

fn check(value: &Value) -> Result<Config, Vec<String>> {
    Config::from_json(value.to_string().as_bytes(), Path::new("/state"))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// The good configuration with one pointer changed; `Value::Null` as key's value removes nothing, it sets null.
fn with(pointer: &str, value: Value) -> Value {
    let mut config = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
    config
}

#[test]
fn a_good_file_is_read_with_its_defaults() {
    let config = check(&good()).unwrap();
    assert_eq!(config.workspaces["scratch"].path, Path::new("/state/scratch"));
    assert_eq!(config.models["sonnet"].endpoint, "https://openrouter.ai/api/v1");
    assert_eq!((config.heartbeat_interval_ms, config.crash_detection_threshold_ms), (5_000, 10_000));
    assert_eq!(config.postgres, Postgres::Embedded { binaries: None });
    assert!(config.secret_names.contains("openrouter-key"));
    let model = config.model_config("sonnet").unwrap();
    assert_eq!((model.temperature, model.rate_limit_retry_ms), (Some(0.7), 1_000));
    assert!(config.model_config("other").is_none());
}

#[test]
fn the_example_of_the_specification_loads() {
    let example = include_str!("../../tests/data/seed-config.json");
    let config = Config::from_json(example.as_bytes(), Path::new("/state")).unwrap();
    assert_eq!(config.models["o3"].temperature, None);
    let agent = &config.agents[&"agent-1".parse().unwrap()];
    assert_eq!(agent.other_exclusive["email"], "primary-email");
    assert_eq!(agent.other_exclusive["dm"], "admin-dm");
    assert!(config.unused_sections.contains(&"gateways".to_owned()));
}

#[test]
fn the_template_is_a_good_file() {
    let text = template(&Template {
        agent: "assistant",
        workspace: Path::new("/w"),
        model: "m",
        endpoint: "http://127.0.0.1:1/v1",
        secret: Some("model-key"),
    });
    Config::from_json(text.as_bytes(), Path::new("/state")).unwrap();
}

#[test]
fn each_mistake_is_named_by_its_path_and_says_what_to_do() {
    let table: Vec<(Value, &str)> = vec![
        (
            with("/agents/agent-1/defaults/llm", json!("sonet")),
            "agents.agent-1.defaults.llm: no model named \"sonet\"; did you mean \"sonnet\"? known: sonnet",
        ),
        (
            with("/agents/agent-1/defaults/workspace", json!("x")),
            "agents.agent-1.defaults.workspace: no workspace named \"x\"; known: main-ws, scratch",
        ),
        (
            with("/heartbeat_intervall_ms", json!(1)),
            "heartbeat_intervall_ms: unknown field; did you mean \"heartbeat_interval_ms\"?",
        ),
        (
            with("/models/sonnet/temprature", json!(1)),
            "models.sonnet.temprature: unknown field; did you mean \"temperature\"?",
        ),
        (
            with("/models/sonnet/endpoint", json!("ftp://x")),
            "models.sonnet.endpoint: must be a URL that starts with https:// or http://",
        ),
        (
            with("/models/sonnet/endpoint", json!("https://u:p@h/v1")),
            "models.sonnet.endpoint: must not contain credentials, a query or a fragment; a key belongs in a secret",
        ),
        (
            with("/models/sonnet/temperature", json!(3)),
            "models.sonnet.temperature: must be a number from 0 to 2, found 3",
        ),
        (with("/models/sonnet/model", json!(7)), "models.sonnet.model: expected a text, found a number"),
        (
            with("/models/sonnet/secret", json!("sk-or-v1 ABC")),
            "models.sonnet.secret: is the *name* of a secret (a-z, 0-9, '-', '_'), never its value; set the value with `choirctl secret set NAME`",
        ),
        (
            with("/workspaces/scratch/path", json!("/srv/choir/main/sub")),
            "workspaces.scratch.path: lies in workspace \"main-ws\"; workspaces are leased exclusively and must not overlap",
        ),
        (with("/workspaces/scratch/path", json!("../x")), "workspaces.scratch.path: must not contain \"..\""),
        (
            with("/workspaces/scratch/path", json!("/")),
            "workspaces.scratch.path: an agent must not be given the root directory",
        ),
        (
            with("/crash_detection_threshold_ms", json!(6000)),
            "crash_detection_threshold_ms: must be at least twice heartbeat_interval_ms (10000), found 6000",
        ),
        (
            with("/heartbeat_interval_ms", json!(0)),
            "heartbeat_interval_ms: must be a whole number from 250 to 3600000, found 0",
        ),
        (
            with("/sandbox", json!("docker")),
            "sandbox: must be one of \"auto\", \"bubblewrap\", \"process\", found \"docker\"",
        ),
        (
            with("/agents/Agent One", json!({"defaults": {"workspace": "scratch", "llm": "sonnet"}})),
            "agents.\"Agent One\": \"Agent One\" is not a name (1 to 63 characters: a-z, 0-9, '-' and '_', starting with a letter or digit)",
        ),
        (with("/agents/two", json!({})), "agents.two.defaults: is missing"),
        (
            with("/link", json!({"carrier": "http"})),
            "link.carrier: must be one of \"unix\", \"tcp\", found \"http\"",
        ),
        (
            with("/link", json!({"carrier": "tcp", "listen": "localhost"})),
            "link.listen: must be an address such as \"127.0.0.1:0\" or \"[::1]:0\", found \"localhost\"",
        ),
        (
            with("/link", json!({"carrier": "tcp", "listen": "127.0.0.1:4000"})),
            "link.listen: the port must be 0: every agent's link gets a free port of its own from the system",
        ),
        (
            with("/link", json!({"carrier": "tcp", "listen": "0.0.0.0:0"})),
            "link.listen: 0.0.0.0 can be reached from other machines; use 127.0.0.1, or set link.reachable_from_other_machines to true if that is meant",
        ),
        (
            with(
                "/link",
                json!({"carrier": "tcp", "listen": "[2001:db8::1]:0", "reachable_from_other_machines": false}),
            ),
            "link.listen: 2001:db8::1 can be reached from other machines; use 127.0.0.1, or set link.reachable_from_other_machines to true if that is meant",
        ),
        (
            with("/link", json!({"listen": "127.0.0.1:0"})),
            "link.listen: only the carrier \"tcp\" has an address; remove it or set \"carrier\": \"tcp\"",
        ),
        (
            with("/version", json!(2)),
            "version: this choird reads format 1, the file has 2; use the choird that wrote it or set 1 and adapt the file",
        ),
        (
            with("/postgres", json!({"host": "h", "binaries": "/b"})),
            "postgres.host: either \"host\" (an external server) or \"binaries\" (the embedded one), not both",
        ),
        (
            with("/dms", json!({"d": {"gateway": "g", "user_id": "1"}})),
            "dms.d.gateway: no gateway named \"g\"; none is defined",
        ),
        (
            with("/budgets", json!({"max_core_jobs": 65})),
            "budgets.max_core_jobs: must be a whole number from 0 to 64, found 65",
        ),
    ];
    for (config, expected) in table {
        let problems = check(&config).unwrap_err();
        assert_eq!(problems, [expected], "for {config}");
    }
}

#[test]
fn links_are_unix_sockets_unless_the_file_says_tcp_and_only_a_plain_word_opens_them_to_other_machines() {
    let link = |value: Value| check(&with("/link", value)).unwrap().link;
    let tcp = |listen: &str, open| Link::Tcp {
        listen: listen.parse().unwrap(),
        reachable_from_other_machines: open,
    };
    assert_eq!(check(&good()).unwrap().link, Link::Unix);
    assert_eq!(link(json!({})), Link::Unix);
    assert_eq!(link(json!({"carrier": "unix"})), Link::Unix);
    assert_eq!(link(json!({"carrier": "tcp"})), tcp("127.0.0.1:0", false));
    for listen in ["127.0.0.1:0", "127.8.8.8:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        assert_eq!(link(json!({"carrier": "tcp", "listen": listen})), tcp(listen, false));
    }
    let open = json!({"carrier": "tcp", "listen": "0.0.0.0:0", "reachable_from_other_machines": true});
    assert_eq!(link(open), tcp("0.0.0.0:0", true));
    let (old, new) = (check(&good()).unwrap(), check(&with("/link", json!({"carrier": "tcp"}))).unwrap());
    assert_eq!(old.needs_restart(&new), ["link: takes effect when choird is restarted"]);
}

#[test]
fn a_problem_is_one_line_whatever_the_file_calls_things() {
    let name = "a\n\u{1b}[2J";
    let mut config = with("/agents/agent-1/defaults/llm", json!("other"));
    config["models"][name] = config["models"]["sonnet"].clone();
    config["workspaces"][name] = json!({"path": "/srv/choir/main"});
    config["agents"][name] = json!({"defaults": {"workspace": "x", "llm": "sonnet"}});
    let problems = check(&config).unwrap_err();
    assert!(problems.len() >= 6, "{problems:?}");
    assert!(problems.iter().all(|problem| !problem.contains(char::is_control)), "{problems:?}");
}

#[test]
fn all_mistakes_of_a_file_are_reported_together() {
    let mut config = with("/agents/agent-1/defaults/llm", json!("x"));
    config["colour"] = json!("blue");
    config["models"]["sonnet"]["endpoint"] = json!(1);
    assert_eq!(check(&config).unwrap_err().len(), 3);
}

#[test]
fn a_repeated_field_is_refused_at_any_depth() {
    let text = r#"{"workspaces": {"a": {"path": "/x"}, "a": {"path": "/x"}},
        "models": {"m": {"model": "m", "endpoint": "http://h", "extra": {"deep": {"k": 1, "k": 2}}}}}"#;
    let problems = Config::from_json(text.as_bytes(), Path::new("/s")).unwrap_err();
    let paths: Vec<_> = problems.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, ["workspaces.a", "models.m.extra.deep.k"]);
}

#[test]
fn what_is_not_json_says_where_it_stops_being_it() {
    let problem = |text: &[u8]| Config::from_json(text, Path::new("/s")).unwrap_err()[0].to_string();
    assert_eq!(problem(b"{\n  \"a\": }"), "not JSON at line 2, column 8: expected value");
    assert_eq!(problem(b"  "), "the file is empty; `choirctl init` writes a good one");
    assert_eq!(problem(b"{\"a\": \"\xff\"}"), "not UTF-8 text: byte 7 is wrong");
    assert!(problem("[".repeat(100_000).as_bytes()).contains("recursion limit"));
    let deep = format!("{{\"models\":{}{}}}", "[".repeat(40), "]".repeat(40));
    assert_eq!(problem(deep.as_bytes()), "nested deeper than 32 levels");
}

#[test]
fn a_missing_or_huge_file_is_an_error_with_a_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.ends_with("; `choirctl init` creates it"), "{error}");
    std::fs::write(&path, vec![b' '; usize::try_from(limits::CONFIG_BYTES).unwrap() + 1]).unwrap();
    assert!(matches!(Config::load(&path), Err(ConfigError::TooLarge { .. })));
    assert!(Config::load(dir.path()).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn what_a_change_needs_a_restart_for_is_said() {
    let old = check(&good()).unwrap();
    assert!(old.needs_restart(&old).is_empty());
    let hot = check(&with("/models/sonnet/temperature", json!(0.1))).unwrap();
    assert!(old.needs_restart(&hot).is_empty());
    let cold = check(&with("/agents/agent-1/defaults/workspace", json!("scratch"))).unwrap();
    assert_eq!(old.needs_restart(&cold).len(), 1);
}

#[test]
fn every_changed_field_is_named_with_what_it_takes() {
    let old = check(&good()).unwrap();
    assert_eq!(old.changes(&old), []);
    let changed = |place: &str, value: Value| {
        let changes = old.changes(&check(&with(place, value)).unwrap());
        let [change] = &changes[..] else { panic!("{place}: {changes:?}") };
        (
            change.path.clone(),
            change.effect,
            change.agents.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
    };
    for (place, value, path, effect, agents) in [
        ("/models/sonnet/temperature", json!(0.1), "models.sonnet.temperature", Effect::Now, &[][..]),
        ("/heartbeat_interval_ms", json!(4321), "heartbeat_interval_ms", Effect::Now, &[]),
        ("/sandbox", json!("process"), "sandbox", Effect::ChoirdRestart, &[]),
        (
            "/agents/agent-1/defaults/workspace",
            json!("scratch"),
            "agents.agent-1.workspace",
            Effect::AgentRestart,
            &["agent-1"],
        ),
        ("/models/sonnet/extra", json!({"a.b": [1]}), "models.sonnet.extra.\"a.b\"", Effect::Now, &[]),
    ] {
        let agents: Vec<String> = agents.iter().map(|agent| (*agent).to_owned()).collect();
        assert_eq!(changed(place, value), (path.to_owned(), effect, agents), "{place}");
    }
    let gone = {
        let mut config = good();
        config["agents"] = json!({});
        old.changes(&check(&config).unwrap())
    };
    assert!(gone.iter().all(|c| c.effect == Effect::AgentStop && c.to.is_none()), "{gone:?}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec(("[a-z_]{0,10}", inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Config::from_json(&bytes, Path::new("/s"));
    }

    #[test]
    fn any_value_in_any_known_place_is_read_or_refused(
        value in any_json(),
        place in prop::sample::select(vec![
            "/workspaces", "/models", "/agents", "/postgres", "/telemetry", "/budgets", "/sandbox", "/version",
            "/models/sonnet", "/models/sonnet/extra", "/agents/agent-1", "/agents/agent-1/defaults", "/tts",
            "/voice_profiles", "/link", "/email_accounts", "/embedding", "/global_repo", "/dms", "/heartbeat_interval_ms",
        ]),
    ) {
        if let Err(problems) = check(&with(place, value)) {
            prop_assert!(!problems.is_empty());
        }
    }
}

/// A configuration whose Coordinator has this identity section.
fn with_identity(identity: serde_json::Value) -> Result<Config, Vec<Problem>> {
    Config::from_json(
        serde_json::json!({"coordinator": {"identity": identity}}).to_string().as_bytes(),
        Path::new("/s"),
    )
}

#[test]
fn the_identity_section_is_read_and_each_mistake_in_it_is_told_by_its_field() {
    use serde_json::json;
    let good = json!({
        "url": "https://chap.example/chap",
        "oidc": [{"issuer": "https://id.example", "audiences": ["chap"], "jwks_uri": "https://id.example/jwks"}],
        "vc": {"domain": "chap.example", "issuers": [{"id": "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2"}]},
    });
    let section = with_identity(good.clone()).unwrap().coordinator.identity.unwrap();
    assert_eq!((section.oidc.len(), section.vc.unwrap().max_age_sec), (1, 300));
    for (pointer, value, told) in [
        ("/url", json!("chap"), "coordinator.identity.url: must be a URL"),
        ("/oidc/0/issuer", json!(7), "coordinator.identity.oidc[0].issuer: expected a text, found a number"),
        ("/oidc/0/audiences", json!([]), "coordinator.identity.oidc[0].audiences: must name"),
        ("/oidc/0/audiences", json!([7]), "coordinator.identity.oidc[0].audiences[0]: expected a text"),
        (
            "/oidc/0/jwks_uri",
            json!("http://id.example"),
            "coordinator.identity.oidc[0].jwks_uri: must be an https URL",
        ),
        ("/oidc/0/jwks_uri", json!(null), "coordinator.identity.oidc[0]: needs jwks_uri or jwks_file"),
        ("/oidc/0/jwks_file", json!("k"), "coordinator.identity.oidc[0].jwks_file: stands beside jwks_uri"),
        ("/oidc/0/algorithms", json!(["HS256"]), "coordinator.identity.oidc[0].algorithms: must be some of"),
        ("/oidc/0/max_age_sec", json!(0), "coordinator.identity.oidc[0].max_age_sec: must be a whole number"),
        (
            "/oidc/0/require_dpop",
            json!("yes"),
            "coordinator.identity.oidc[0].require_dpop: expected true or false",
        ),
        ("/vc/issuers", json!([]), "coordinator.identity.vc.issuers: must name somebody"),
        (
            "/vc/issuers/0/id",
            json!("https://i.example"),
            "coordinator.identity.vc.issuers[0].keys: is missing",
        ),
        (
            "/vc/issuers/0/keys",
            json!({"#1": {"kty": "RSA"}}),
            "coordinator.identity.vc.issuers[0].keys.\"#1\": must be",
        ),
        ("/vc/max_age_sec", json!(86400), "coordinator.identity.vc.max_age_sec: must be a whole number"),
        ("/vc/mirrors", json!({"l": "ftp://x"}), "coordinator.identity.vc.mirrors.l: must be an https URL"),
        ("/vc/domain", json!(""), "coordinator.identity.vc.domain: must not be empty"),
    ] {
        let mut bad = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { &mut bad } else { bad.pointer_mut(parent).unwrap() };
        parent[name] = value;
        let problems: Vec<String> = with_identity(bad).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|problem| problem.starts_with(told)), "{pointer}: {problems:?}");
    }
    assert!(with_identity(json!({})).unwrap_err()[0].to_string().contains("names neither"));
    let dpop = json!({"oidc": [{"issuer": "i", "audiences": ["c"], "jwks_file": "k", "require_dpop": true}]});
    assert!(
        with_identity(dpop).unwrap_err()[0]
            .to_string()
            .starts_with("coordinator.identity.oidc[0].require_dpop: needs `url`")
    );
}

#[test]
fn a_changed_identity_section_takes_effect_when_choird_is_restarted() {
    use serde_json::json;
    let provider = |audience: &str| json!({"oidc": [{"issuer": "https://id.example", "audiences": [audience], "jwks_uri": "https://id.example/k"}]});
    let (old, new) = (with_identity(provider("a")).unwrap(), with_identity(provider("b")).unwrap());
    let changes = old.changes(&new);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (changes[0].path.as_str(), changes[0].effect),
        ("coordinator.identity.oidc", Effect::ChoirdRestart)
    );
    assert_eq!(changes[0].to.as_ref().unwrap()[0]["audiences"], json!(["b"]));
}
