//! Arguments of tool calls as a model wrote them, and the paths in them (`choir §8.3`, `choir §8.7`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use choir_messages::canonical;
use choir_messages::limits::TOOL_OUTCOME_BYTES;
use choir_messages::tool::{Lane, ResourceKey, ToolOutcome, ToolStatus};
use choir_tools::limits::{NAME_BYTES, PATH_BYTES};
use choir_tools::workspace::{MOUNT, WsPath};
use choir_tools::{ToolRegistry, Workspace};

use crate::Input;

const TOOLS: [&str; 4] = ["choir.fs.read", "choir.fs.write", "choir.fs.search", "choir.exec"];

/// A workspace with links inside, out and around, and a file beside it.
struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
    registry: ToolRegistry,
    workspace: Workspace,
}

impl Place {
    fn new() -> std::io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let root = dir.path().canonicalize()?.join("ws");
        fs::create_dir_all(root.join("a/b"))?;
        fs::create_dir(dir.path().join("outside"))?;
        for file in ["a/f", "a/b/g", "../outside/secret"] {
            fs::write(root.join(file), "text\n")?;
        }
        for (target, link) in [
            ("a/b", "in"),
            ("../ws/a", "out-and-back"),
            ("..", "up"),
            ("../outside/secret", "out"),
            ("/etc/passwd", "absolute"),
            ("/workspace/a", "mount"),
            ("loop", "loop"),
            ("/proc/self/root", "magic"),
            ("gone/../a", "broken"),
        ] {
            symlink(target, root.join(link))?;
        }
        let registry = ToolRegistry::builtin_with(&root, "/bin", None).map_err(std::io::Error::other)?;
        let workspace = Workspace::open(&root).map_err(std::io::Error::other)?;
        Ok(Self { _dir: dir, root, registry, workspace })
    }
}

/// The input is a tool (one byte; 4: a name from the input's own first line) and the arguments. A refusal is an outcome
/// that the log takes. What is accepted is in its one form: it is accepted again as itself, also after it was written
/// to the log and read back, asks for at least one lock, and names only paths that stay in the workspace. The same text
/// taken as a path is refused or stays inside too.
pub fn tool_args(data: &[u8]) -> bool {
    thread_local! {
        static PLACE: Place = Place::new().expect("a temporary folder can be made");
    }
    let mut input = Input::new(data);
    let which = input.byte().unwrap_or_default();
    let Ok(text) = std::str::from_utf8(input.rest()) else { return false };
    let (name, arguments) = match TOOLS.get(usize::from(which % 5)) {
        Some(name) => (*name, text),
        None => text.split_once('\n').unwrap_or((text, "")),
    };
    PLACE.with(|place| {
        assert_path_is_confined(place, text);
        match place.registry.validate(&Lane::Edge, name, arguments) {
            Err(outcome) => {
                assert_refusal_fits(&outcome);
                false
            }
            Ok(valid) => {
                assert!(!valid.locks.is_empty() && valid.timeout.as_millis() > 0);
                for lock in &valid.locks {
                    assert_eq!(lock.resource.to_string().parse().as_ref(), Ok(&lock.resource));
                    if let ResourceKey::File(path) = &lock.resource {
                        assert_is_inside(place, path);
                    }
                }
                for field in ["path", "cwd"] {
                    if let Some(path) = valid.input.value().get(field).and_then(|path| path.as_str()) {
                        assert_is_inside(place, path);
                    }
                }
                let logged = canonical::to_string(&valid.input).expect("an input is JSON");
                for text in [valid.input.value().to_string(), logged] {
                    let again = place.registry.validate(&Lane::Edge, name, &text);
                    assert_eq!(again.as_ref(), Ok(&valid), "{name} {text}");
                }
                true
            }
        }
    })
}

fn assert_refusal_fits(outcome: &ToolOutcome) {
    assert_eq!(outcome.status, ToolStatus::Refused);
    let sentence = outcome.output.value().get("error").and_then(|error| error.as_str());
    assert!(sentence.is_some_and(|sentence| !sentence.is_empty()));
    assert!(outcome.output.value().to_string().len() <= TOOL_OUTCOME_BYTES);
}

fn assert_path_is_confined(place: &Place, text: &str) {
    if let Ok(path) = WsPath::parse(text, place.workspace.real_path()) {
        assert_is_normal(path.as_str());
        if !path.is_root() {
            assert_eq!(WsPath::parse(path.as_str(), place.workspace.real_path()).as_ref(), Ok(&path));
            assert_eq!(WsPath::parse(&format!("{MOUNT}/./{path}/"), "/elsewhere").ok(), long_enough(&path));
        }
    }
    if let Ok(path) = place.workspace.resolve(text) {
        assert_is_inside(place, &path.to_string());
        assert_eq!(place.workspace.resolve(&path.to_string()).as_ref(), Ok(&path));
    }
}

/// The path, unless a longer spelling of it is longer than any path may be.
fn long_enough(path: &WsPath) -> Option<WsPath> {
    (path.as_str().len() + MOUNT.len() + "/.//".len() <= PATH_BYTES).then(|| path.clone())
}

fn assert_is_normal(path: &str) {
    for part in path.split('/').filter(|_| !path.is_empty()) {
        assert!(!part.is_empty() && part != "." && part != ".." && part.len() <= NAME_BYTES, "{path:?}");
    }
}

/// The path is the real one of what stands there: the file system, asked by other means, agrees.
fn assert_is_inside(place: &Place, path: &str) {
    if path == "." {
        return;
    }
    assert_is_normal(path);
    let whole = place.root.join(path);
    assert!(whole.starts_with(&place.root), "{path:?}");
    let mut there: &Path = &whole;
    while fs::symlink_metadata(there).is_err() {
        there = there.parent().expect("the workspace is there");
    }
    assert_eq!(there.canonicalize().ok().as_deref(), Some(there), "{path:?} is not where it is");
    assert!(there.starts_with(&place.root), "{path:?}");
}
