//! Reads a JSON file so that every problem in it is found in one go: a tree that keeps duplicate keys visible, and
//! cursors that know their JSON path, say what they expected, and guess what an unknown field was meant to be.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use crate::limits;

/// One thing wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a JSON path such as `agents.agent-1.defaults.llm`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and, where there is one, what to do about it.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.path, self.what) }
    }
}

/// A JSON value whose objects keep their fields in order, repeats included.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The plain value; of repeated fields the last wins (repeats are reported elsewhere).
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Number(n) => Value::Number(n.clone()),
            Self::Text(t) => Value::String(t.clone()),
            Self::Array(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Self::Object(fields) => {
                Value::Object(fields.iter().map(|(k, v)| (k.clone(), v.to_value())).collect())
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(fields) => 1 + fields.iter().map(|(_, v)| v.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Node, E> {
                Ok(Node::Bool(v))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Node, E> {
                Ok(Node::Number(v.into()))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Node, E> {
                Ok(Node::Number(v.into()))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Node, E> {
                Ok(Number::from_f64(v).map_or(Node::Null, Node::Number))
            }
            fn visit_str<E>(self, v: &str) -> Result<Node, E> {
                Ok(Node::Text(v.to_owned()))
            }
            fn visit_string<E>(self, v: String) -> Result<Node, E> {
                Ok(Node::Text(v))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::Array(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Node::Object(fields))
            }
        }
        d.deserialize_any(Any)
    }
}

/// Parses a file's bytes into a tree; the one problem of a file that is not JSON says where it stops being it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Node, Problem> {
    let at_root = |what: String| Problem { path: String::new(), what };
    let text = std::str::from_utf8(bytes)
        .map_err(|e| at_root(format!("not UTF-8 text: byte {} is wrong", e.valid_up_to())))?;
    if text.trim().is_empty() {
        return Err(at_root("the file is empty; `choirctl init` writes a good one".into()));
    }
    let node: Node = serde_json::from_str(text).map_err(|e| {
        let why = e.to_string();
        let why = why.split(" at line ").next().unwrap_or_default();
        at_root(format!("not JSON at line {}, column {}: {why}", e.line(), e.column()))
    })?;
    if node.depth() > limits::CONFIG_DEPTH {
        return Err(at_root(format!("nested deeper than {} levels", limits::CONFIG_DEPTH)));
    }
    Ok(node)
}

/// Collects problems while a tree is read.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn add(&mut self, path: impl Into<String>, what: impl Into<String>) {
        self.0.push(Problem { path: path.into(), what: what.into() });
    }

    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.0
    }
}

/// Appends a key to a path; keys that would confuse the path are quoted.
pub(crate) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let key = if plain { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// The nearest of `known` to `name`, if any is near enough to be what was meant.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .filter(|(distance, k)| *distance <= 1 + k.len().max(name.len()) / 4);
    // Of equally near ones, that which lacks or adds letters and changes none: "lm" is rather "llm" than "dm".
    let changes = |k: &str, distance: usize| distance != k.len().abs_diff(name.len());
    near.min_by_key(|(distance, k)| (*distance, changes(k, *distance), *k)).map(|(_, k)| k)
}

/// `known: a, b, c`, or `none is defined`.
pub(crate) fn known_list<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    // Names come from the file, the wrong ones among them too.
    let list: Vec<_> = known.into_iter().map(|name| join("", name)).collect();
    if list.is_empty() { "none is defined".into() } else { format!("known: {}", list.join(", ")) }
}

/// A value and where it stands.
#[derive(Clone)]
pub(crate) struct At<'a> {
    pub(crate) path: String,
    pub(crate) node: &'a Node,
}

impl<'a> At<'a> {
    pub(crate) fn root(node: &'a Node) -> Self {
        Self { path: String::new(), node }
    }

    fn wrong(&self, expected: &str, problems: &mut Problems) {
        problems.add(self.path.clone(), format!("expected {expected}, found {}", self.node.kind()));
    }

    /// A non-empty text of at most 4096 bytes without control characters.
    pub(crate) fn text(&self, problems: &mut Problems) -> Option<String> {
        match self.node {
            Node::Text(t) if t.trim().is_empty() => {
                problems.add(self.path.clone(), "must not be empty");
                None
            }
            Node::Text(t) if t.len() > 4096 || t.chars().any(char::is_control) => {
                problems.add(self.path.clone(), "must be at most 4096 bytes without control characters");
                None
            }
            Node::Text(t) => Some(t.clone()),
            _ => {
                self.wrong("a text", problems);
                None
            }
        }
    }

    /// A whole number within bounds.
    pub(crate) fn whole(&self, range: std::ops::RangeInclusive<u64>, problems: &mut Problems) -> Option<u64> {
        match self.node {
            Node::Number(n) if n.as_u64().is_some_and(|n| range.contains(&n)) => n.as_u64(),
            Node::Number(n) => {
                problems.add(
                    self.path.clone(),
                    format!("must be a whole number from {} to {}, found {n}", range.start(), range.end()),
                );
                None
            }
            _ => {
                self.wrong("a whole number", problems);
                None
            }
        }
    }

    /// A number within bounds.
    pub(crate) fn number(
        &self,
        range: std::ops::RangeInclusive<f64>,
        problems: &mut Problems,
    ) -> Option<f64> {
        match self.node {
            Node::Number(n) if n.as_f64().is_some_and(|n| range.contains(&n)) => n.as_f64(),
            Node::Number(n) => {
                problems.add(
                    self.path.clone(),
                    format!("must be a number from {} to {}, found {n}", range.start(), range.end()),
                );
                None
            }
            _ => {
                self.wrong("a number", problems);
                None
            }
        }
    }

    /// A boolean.
    pub(crate) fn boolean(&self, problems: &mut Problems) -> Option<bool> {
        if let Node::Bool(b) = self.node {
            Some(*b)
        } else {
            self.wrong("true or false", problems);
            None
        }
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)], problems: &mut Problems) -> Option<T> {
        let text = self.text(problems)?;
        let found = words.iter().find(|(w, _)| *w == text).map(|(_, t)| *t);
        if found.is_none() {
            let all: Vec<_> = words.iter().map(|(w, _)| format!("\"{w}\"")).collect();
            problems.add(self.path.clone(), format!("must be one of {}, found \"{text}\"", all.join(", ")));
        }
        found
    }

    /// Opens an object. Repeated fields are reported here.
    pub(crate) fn object(&self, problems: &mut Problems) -> Option<Object<'a>> {
        let Node::Object(fields) = self.node else {
            self.wrong("an object", problems);
            return None;
        };
        for (at, (key, _)) in fields.iter().enumerate() {
            let before = &fields[..at];
            if before.iter().any(|(k, _)| k == key) {
                problems.add(join(&self.path, key), "appears twice; keep one");
            }
        }
        Some(Object { path: self.path.clone(), fields, asked: Vec::new() })
    }

    /// Reports repeated fields anywhere below, for parts that are otherwise free.
    pub(crate) fn free(&self, problems: &mut Problems) -> Value {
        fn walk(path: &str, node: &Node, problems: &mut Problems) {
            match node {
                Node::Object(fields) => {
                    At { path: path.to_owned(), node }.object(problems);
                    for (key, value) in fields {
                        walk(&join(path, key), value, problems);
                    }
                }
                Node::Array(items) => {
                    for (at, item) in items.iter().enumerate() {
                        walk(&format!("{path}[{at}]"), item, problems);
                    }
                }
                _ => {}
            }
        }
        walk(&self.path, self.node, problems);
        self.node.to_value()
    }

    /// The elements of an array.
    pub(crate) fn list(&self, problems: &mut Problems) -> Option<Vec<At<'a>>> {
        let Node::Array(items) = self.node else {
            self.wrong("an array", problems);
            return None;
        };
        let at = |(number, node)| At { path: format!("{}[{number}]", self.path), node };
        Some(items.iter().enumerate().map(at).collect())
    }

    /// An array of texts.
    pub(crate) fn texts(&self, problems: &mut Problems) -> Option<Vec<String>> {
        self.list(problems)?.into_iter().map(|at| at.text(problems)).collect()
    }

    /// Whether it is `null`.
    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.node, Node::Null)
    }
}

/// An object being read field by field; [`Object::finish`] reports what nobody asked for.
pub(crate) struct Object<'a> {
    pub(crate) path: String,
    fields: &'a [(String, Node)],
    asked: Vec<&'static str>,
}

impl<'a> Object<'a> {
    /// A field, if present.
    pub(crate) fn get(&mut self, key: &'static str) -> Option<At<'a>> {
        self.asked.push(key);
        let (_, node) = self.fields.iter().rev().find(|(k, _)| k == key)?;
        Some(At { path: join(&self.path, key), node })
    }

    /// A field that is present and not `null`.
    pub(crate) fn some(&mut self, key: &'static str) -> Option<At<'a>> {
        self.get(key).filter(|at| !at.is_null())
    }

    /// A field that must be present.
    pub(crate) fn must(&mut self, key: &'static str, problems: &mut Problems) -> Option<At<'a>> {
        let found = self.get(key);
        if found.is_none() {
            problems.add(join(&self.path, key), "is missing");
        }
        found
    }

    /// Every field, for objects whose keys are names.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'a> {
        let path = self.path.clone();
        self.fields.iter().map(move |(key, node)| (key.as_str(), At { path: join(&path, key), node }))
    }

    /// Reports the fields that were not asked for.
    pub(crate) fn finish(self, problems: &mut Problems) {
        for (key, _) in self.fields {
            if self.asked.contains(&key.as_str()) {
                continue;
            }
            let hint = match nearest(key, self.asked.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => known_list(self.asked.iter().copied()),
            };
            problems.add(join(&self.path, key), format!("unknown field; {hint}"));
        }
    }
}
