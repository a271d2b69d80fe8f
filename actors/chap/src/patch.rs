//! JSON Patch (RFC 6902) as `decide.override` carries it (digest §3.5): the six operations on a copy, all or nothing,
//! with bounds on operations, nodes, bytes, depth and work.

use serde_json::Value;

use crate::limits::{NESTING, PATCH_BYTES, PATCH_NODES, PATCH_OPERATIONS, PATCH_WORK};

/// Why a patch does not apply. The wording is shared by every CHAP implementation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatchError(String);

fn fail<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError(message.into()))
}

/// Applies a patch to a document and returns the patched one.
pub fn apply(document: &Value, patch: &[Value]) -> Result<Value, PatchError> {
    if patch.len() > PATCH_OPERATIONS {
        return fail(format!("Patch has too many operations ({} > {PATCH_OPERATIONS})", patch.len()));
    }
    let mut patching = Patching { size: Size::of(document), document: document.clone(), work: 0 };
    for operation in patch {
        patching.operate(operation)?;
        if patching.size.nodes > PATCH_NODES {
            return fail(format!("Patched document exceeds the node limit ({PATCH_NODES})"));
        }
        if patching.size.bytes > PATCH_BYTES {
            return fail(format!("Patched document exceeds the size limit ({PATCH_BYTES} bytes)"));
        }
    }
    Ok(patching.document)
}

/// How much a value is.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
    depth: usize,
}

impl Size {
    fn of(value: &Value) -> Self {
        let mut size = Self { nodes: 1, bytes: 8, depth: 1 };
        let mut add = |child: &Value| {
            let child = Self::of(child);
            size.nodes += child.nodes;
            size.bytes += child.bytes;
            size.depth = size.depth.max(child.depth + 1);
        };
        match value {
            Value::Array(items) => items.iter().for_each(add),
            Value::Object(map) => {
                map.values().for_each(&mut add);
                size.bytes += map.keys().map(String::len).sum::<usize>();
            }
            Value::String(text) => size.bytes += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        size
    }
}

struct Patching {
    document: Value,
    size: Size,
    /// Nodes copied so far.
    work: usize,
}

impl Patching {
    fn operate(&mut self, operation: &Value) -> Result<(), PatchError> {
        let Some(operation) = operation.as_object() else { return fail("An operation must be an object") };
        let path = match operation.get("path") {
            None => "",
            Some(Value::String(path)) => path,
            Some(_) => return fail("'path' must be a string"),
        };
        let kind = operation.get("op").unwrap_or(&Value::Null);
        let value = |name: &str| match operation.get("value") {
            Some(value) => Ok(value),
            None => fail(format!("'{name}' requires 'value'")),
        };
        let source = |name: &str| match operation.get("from") {
            None | Some(Value::Null) => fail(format!("'{name}' requires 'from'")),
            Some(Value::String(from)) => Ok(from.as_str()),
            Some(_) => fail("'from' must be a string"),
        };
        match kind.as_str() {
            Some("add") => self.add(path, value("add")?.clone()),
            Some("replace") => self.replace(path, value("replace")?.clone()),
            Some("remove") => self.remove(path).map(drop),
            Some("copy") => {
                let copied = get(&self.document, source("copy")?)?.clone();
                self.worked(&copied)?;
                self.add(path, copied)
            }
            Some("move") => {
                let from = source("move")?;
                if path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
                    return fail("'move' cannot move a location into its own child.");
                }
                get(&self.document, from)?;
                let moved = self.remove(from)?;
                self.worked(&moved)?;
                self.add(path, moved)
            }
            Some("test") => {
                let wanted = value("test")?;
                if equal(get(&self.document, path)?, wanted) {
                    Ok(())
                } else {
                    fail(format!("'test' failed at {path}"))
                }
            }
            _ => fail(format!("Unsupported op: {kind}")),
        }
    }

    fn worked(&mut self, value: &Value) -> Result<(), PatchError> {
        self.work += Size::of(value).nodes;
        if self.work > PATCH_WORK {
            fail(format!("Patch copies too much (more than {PATCH_WORK} nodes)"))
        } else {
            Ok(())
        }
    }

    /// Books a value that is about to stand `level` levels below the root, and one that goes.
    fn book(&mut self, level: usize, comes: &Value, goes: Option<&Value>) -> Result<(), PatchError> {
        let comes = Size::of(comes);
        if level + comes.depth > NESTING {
            return fail(format!("Patched document nests deeper than {NESTING} levels"));
        }
        let goes = goes.map(Size::of).unwrap_or_default();
        self.size.nodes = (self.size.nodes + comes.nodes).saturating_sub(goes.nodes);
        self.size.bytes = (self.size.bytes + comes.bytes).saturating_sub(goes.bytes);
        Ok(())
    }

    fn add(&mut self, path: &str, value: Value) -> Result<(), PatchError> {
        let parts = split(path)?;
        let Some((last, way)) = parts.split_last() else { return self.replace_root(value) };
        let mut document = std::mem::take(&mut self.document);
        let done = (|| match parent(&mut document, way, last)? {
            (Value::Array(items), Place::Index(index)) if index <= items.len() => {
                self.book(parts.len(), &value, None)?;
                items.insert(index, value);
                Ok(())
            }
            (Value::Array(items), Place::End) => {
                self.book(parts.len(), &value, None)?;
                items.push(value);
                Ok(())
            }
            (Value::Array(_), _) => fail(format!("Index out of range for add: {path}")),
            (Value::Object(map), _) => {
                self.book(parts.len(), &value, map.get(last))?;
                self.size.bytes += if map.contains_key(last) { 0 } else { last.len() };
                map.insert(last.clone(), value);
                Ok(())
            }
            (other, _) => fail(format!("Cannot add into {}", type_name(other))),
        })();
        self.document = document;
        done
    }

    fn replace_root(&mut self, value: Value) -> Result<(), PatchError> {
        let old = std::mem::take(&mut self.document);
        self.size = Size::default();
        let done = self.book(0, &value, None);
        self.document = if done.is_ok() { value } else { old };
        done
    }

    fn replace(&mut self, path: &str, value: Value) -> Result<(), PatchError> {
        let parts = split(path)?;
        let Some((last, way)) = parts.split_last() else { return self.replace_root(value) };
        let mut document = std::mem::take(&mut self.document);
        let done = (|| {
            let target = match parent(&mut document, way, last)? {
                (Value::Array(items), Place::Index(index)) => items.get_mut(index),
                (Value::Array(_), _) => None,
                (Value::Object(map), _) => map.get_mut(last),
                (other, _) => return fail(format!("Cannot replace in {}", type_name(other))),
            };
            let Some(target) = target else { return fail(format!("Path not found for replace: {path}")) };
            self.book(parts.len(), &value, Some(target))?;
            *target = value;
            Ok(())
        })();
        self.document = document;
        done
    }

    fn remove(&mut self, path: &str) -> Result<Value, PatchError> {
        let parts = split(path)?;
        let Some((last, way)) = parts.split_last() else { return fail("Cannot remove root.") };
        let removed = match parent(&mut self.document, way, last)? {
            (Value::Array(items), Place::Index(index)) if index < items.len() => items.remove(index),
            (Value::Array(_), _) => return fail(format!("Index out of range for remove: {path}")),
            (Value::Object(map), _) => match map.remove(last) {
                Some(removed) => removed,
                None => return fail(format!("Path not found for remove: {path}")),
            },
            (other, _) => return fail(format!("Cannot remove from {}", type_name(other))),
        };
        let size = Size::of(&removed);
        self.size.nodes = self.size.nodes.saturating_sub(size.nodes);
        self.size.bytes = self.size.bytes.saturating_sub(size.bytes);
        Ok(removed)
    }
}

/// Where in its parent a location is.
enum Place {
    Index(usize),
    End,
    Key,
}

/// The segments of an RFC 6901 pointer. Names that mean something to other languages' objects are refused everywhere.
fn split(path: &str) -> Result<Vec<String>, PatchError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let Some(rest) = path.strip_prefix('/') else {
        return fail(format!("JSON Pointer must start with '/': {}", Value::from(path)));
    };
    let parts: Vec<String> = rest.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    match parts.iter().find(|part| matches!(part.as_str(), "__proto__" | "constructor" | "prototype")) {
        Some(part) => fail(format!("Refusing unsafe path segment {}", Value::from(part.as_str()))),
        None => Ok(parts),
    }
}

fn array_index(part: &str) -> Result<usize, PatchError> {
    let digits = part.bytes().all(|b| b.is_ascii_digit())
        && !part.is_empty()
        && (part == "0" || !part.starts_with('0'));
    if digits {
        // An index beyond every memory is beyond every array.
        Ok(part.parse().unwrap_or(usize::MAX))
    } else {
        fail(format!("Array index expected at {}", Value::from(part)))
    }
}

/// One step down; `so_far` is the way including this step.
fn descend<'v>(value: &'v Value, part: &str, so_far: &[String]) -> Result<&'v Value, PatchError> {
    let at = || format!("/{}", so_far.join("/"));
    match value {
        Value::Array(items) => {
            items.get(array_index(part)?).map_or_else(|| fail(format!("Index out of range at {}", at())), Ok)
        }
        Value::Object(map) => map.get(part).map_or_else(|| fail(format!("Path not found: {}", at())), Ok),
        other => fail(format!("Cannot traverse into {} at {}", type_name(other), Value::from(part))),
    }
}

fn parent<'v>(
    document: &'v mut Value,
    way: &[String],
    last: &str,
) -> Result<(&'v mut Value, Place), PatchError> {
    let mut here = document;
    for (depth, part) in way.iter().enumerate() {
        descend(here, part, &way[..=depth])?;
        here = match here {
            Value::Array(items) => {
                let index = array_index(part)?;
                match items.get_mut(index) {
                    Some(item) => item,
                    None => return fail("Index out of range"),
                }
            }
            Value::Object(map) => match map.get_mut(part) {
                Some(value) => value,
                None => return fail("Path not found"),
            },
            _ => return fail("Cannot traverse"),
        };
    }
    let place = match here {
        Value::Array(_) if last == "-" => Place::End,
        Value::Array(_) => Place::Index(array_index(last)?),
        _ => Place::Key,
    };
    Ok((here, place))
}

fn get<'v>(document: &'v Value, path: &str) -> Result<&'v Value, PatchError> {
    let parts = split(path)?;
    let Some((last, way)) = parts.split_last() else { return Ok(document) };
    let mut here = document;
    for (depth, part) in way.iter().enumerate() {
        here = descend(here, part, &way[..=depth])?;
    }
    match here {
        Value::Array(_) if last == "-" => fail("Cannot read '-' position."),
        Value::Array(items) => {
            items.get(array_index(last)?).map_or_else(|| fail(format!("Index out of range: {path}")), Ok)
        }
        Value::Object(map) => map.get(last).map_or_else(|| fail(format!("Path not found: {path}")), Ok),
        _ => fail(format!("Path not found: {path}")),
    }
}

/// Equality of JSON: numbers by value, everything else by type and value.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

const fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
