//! Locksets in canonical form, and when two of them exclude each other (`choir §9.1`, `§9.2`).

use choir_messages::tool::{Lane, LockMode, LockSpec, ResourceKey};

/// The staging folder, which the hierarchy of `workspace` leaves out (`choir §9.2`).
const STAGING: &str = ".choirtmp";

/// The workspace's own folder as a path. Not the empty string, so that the key prints as `file:.` and reads back.
const ROOT: &str = ".";

/// The locks of one call in canonical form: keys normalised, sorted, no lock that another of the set covers. Two
/// requests that mean the same are equal.
///
/// Keys are normalised as follows, so that one thing on disk has one key however it was written:
///
/// * `file:` paths lose empty and `.` parts. The workspace's own folder is `file:.`, which covers every file but is
///   still a *file* lock: the edge lane may read it dirtily, which it may not with `workspace` (`choir §9.4`).
/// * A path with `..` cannot be resolved without the disk (symlinks); it becomes `file:.`, which is never too little.
/// * `file:.choirtmp` and what lies under it become `choirtmp`.
///
/// Hard links are outside of this: two names of one inode are two keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LockSet(Vec<LockSpec>);

impl LockSet {
    /// The canonical form of these locks.
    #[must_use]
    pub fn canonical(mut locks: Vec<LockSpec>) -> Self {
        for lock in &mut locks {
            normalise(&mut lock.resource);
        }
        if locks.len() > 1 {
            locks.sort_unstable();
            locks.dedup();
            // No two different locks cover each other, so dropping every covered one never drops all of a group.
            let keep: Vec<bool> = locks
                .iter()
                .map(|lock| !locks.iter().any(|other| other != lock && covers(other, lock)))
                .collect();
            let mut keep = keep.into_iter();
            locks.retain(|_| keep.next().unwrap_or(true));
        }
        Self(locks)
    }

    /// The locks, sorted.
    #[must_use]
    pub fn locks(&self) -> &[LockSpec] {
        &self.0
    }

    /// The lock of `other` that excludes one of these, if any. With `dirty`, the file reads of this set are left out
    /// of the comparison (the dirty-read exception, `choir §9.4`).
    pub(crate) fn excluded_by<'a>(&self, other: &'a Self, dirty: bool) -> Option<&'a LockSpec> {
        self.0
            .iter()
            .filter(|mine| !(dirty && is_file_read(mine)))
            .find_map(|mine| other.0.iter().find(|theirs| excludes(mine, theirs)))
    }

    /// Whether this set, held by `owner`, opens the dirty-read exception: a core job with the whole workspace.
    pub(crate) fn opens_dirty_reads(&self, owner: &Lane) -> bool {
        matches!(owner, Lane::Core(_))
            && self.0.iter().any(|lock| lock.resource == ResourceKey::Workspace && lock.mode == LockMode::X)
    }
}

/// `file:<path>:S`, the only lock the dirty-read exception is about.
pub(crate) fn is_file_read(lock: &LockSpec) -> bool {
    lock.mode == LockMode::S && matches!(lock.resource, ResourceKey::File(_))
}

/// Whether two locks cannot be held at once by two calls.
#[must_use]
pub fn excludes(one: &LockSpec, other: &LockSpec) -> bool {
    (one.mode == LockMode::X || other.mode == LockMode::X)
        && (contains(&one.resource, &other.resource) || contains(&other.resource, &one.resource))
}

/// Whether holding `wide` makes holding `narrow` as well pointless.
fn covers(wide: &LockSpec, narrow: &LockSpec) -> bool {
    wide.mode >= narrow.mode && contains(&wide.resource, &narrow.resource)
}

/// Whether everything in `narrow` lies in `wide`; every resource contains itself. Expects normalised keys.
#[must_use]
pub fn contains(wide: &ResourceKey, narrow: &ResourceKey) -> bool {
    match (wide, narrow) {
        (ResourceKey::Workspace, ResourceKey::File(_)) => true,
        (ResourceKey::File(folder), ResourceKey::File(path)) => {
            folder == ROOT
                || path
                    .strip_prefix(folder.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        _ => wide == narrow,
    }
}

fn normalise(key: &mut ResourceKey) {
    let ResourceKey::File(path) = key else { return };
    if !is_plain(path) {
        *path = if path.split('/').any(|part| part == "..") {
            ROOT.to_owned()
        } else {
            let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            if parts.is_empty() { ROOT.to_owned() } else { parts.join("/") }
        };
    }
    if path.strip_prefix(STAGING).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        *key = ResourceKey::ChoirTmp;
    }
}

/// Whether a path is already as it should be, which is the usual case and then costs no allocation.
fn is_plain(path: &str) -> bool {
    path == ROOT || path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(texts: &[&str]) -> LockSet {
        LockSet::canonical(texts.iter().map(|text| lock(text)).collect())
    }

    fn lock(text: &str) -> LockSpec {
        let (key, mode) = text.rsplit_once(':').unwrap();
        let mode = if mode == "X" { LockMode::X } else { LockMode::S };
        let resource = match key {
            "file:" => ResourceKey::File(String::new()),
            key => key.parse().unwrap(),
        };
        LockSpec { resource, mode }
    }

    #[test]
    fn repeats_and_covered_locks_are_folded() {
        assert_eq!(set(&["file:a:S", "file:a:X", "file:a:S"]), set(&["file:a:X"]));
        assert_eq!(set(&["file:d/a:X", "workspace:X", "file:b:S"]), set(&["workspace:X"]));
        assert_eq!(set(&["file:d/a:S", "file:d:S"]), set(&["file:d:S"]));
        assert_eq!(set(&["workspace:S", "workspace:X"]), set(&["workspace:X"]));
    }

    #[test]
    fn a_weaker_lock_above_does_not_swallow_a_stronger_one_below() {
        assert_eq!(set(&["workspace:S", "file:a:X"]).locks().len(), 2);
        assert_eq!(set(&["file:d:S", "file:d/a:X"]).locks().len(), 2);
    }

    #[test]
    fn one_thing_on_disk_has_one_key() {
        for same in ["file:d/a:S", "file:./d/a:S", "file:d//a:S", "file:d/a/:S", "file:/d/./a:S"] {
            assert_eq!(set(&[same]), set(&["file:d/a:S"]), "{same}");
        }
        for root in ["file::S", "file:.:S", "file:/:S", "file:./:S", "file:a/../b:S", "file:..:S"] {
            assert_eq!(set(&[root]), set(&["file:.:S"]), "{root}");
        }
        assert_eq!(set(&["file:..a/b..:S"]).locks(), [lock("file:..a/b..:S")]);
    }

    #[test]
    fn the_workspaces_own_folder_prints_as_a_key_that_reads_back() {
        let key = &set(&["file::S"]).0[0].resource;
        assert_eq!(key.to_string().parse().as_ref(), Ok(key));
    }

    #[test]
    fn a_path_in_the_staging_folder_is_the_staging_area() {
        for path in ["file:.choirtmp:X", "file:.choirtmp/send/a.ogg:X", "file:./.choirtmp//recv:X"] {
            assert_eq!(set(&[path]), set(&["choirtmp:X"]), "{path}");
        }
        assert_eq!(set(&["file:.choirtmp2/a:X"]).locks(), [lock("file:.choirtmp2/a:X")]);
        assert_eq!(set(&["file:a/.choirtmp:X"]).locks(), [lock("file:a/.choirtmp:X")]);
    }

    #[test]
    fn the_workspace_and_every_folder_dominate_what_lies_under_them() {
        let excluded = |one: &str, other: &str| excludes(&set(&[one]).0[0], &set(&[other]).0[0]);
        for (one, other) in [
            ("workspace:X", "file:a:S"),
            ("workspace:S", "file:a/b:X"),
            ("workspace:X", "workspace:S"),
            ("workspace:X", "file:.:S"),
            ("file:.:X", "file:a/b/c:S"),
            ("file:a:X", "file:a/b/c:S"),
            ("file:a:S", "file:a/b:X"),
            ("file:a:X", "file:a:X"),
            ("choirtmp:X", "choirtmp:S"),
            ("browser_tab:X", "browser_tab:X"),
        ] {
            assert!(excluded(one, other) && excluded(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("workspace:S", "file:a:S"),
            ("file:a:S", "file:a:S"),
            ("file:a:X", "file:ab:X"),
            ("file:a:X", "file:b/a:X"),
            ("workspace:X", "choirtmp:X"),
            ("file:.:X", "choirtmp:X"),
            ("workspace:X", "browser_tab:X"),
            ("workspace:X", "repo:a:X"),
            ("file:a:X", "mem:a:X"),
            ("net:a:X", "ext:a:X"),
            ("net:a:X", "net:a/b:X"),
        ] {
            assert!(!excluded(one, other) && !excluded(other, one), "{one} {other}");
        }
    }

    fn any_lock() -> impl Strategy<Value = LockSpec> {
        let key = prop_oneof![
            Just(ResourceKey::Workspace),
            Just(ResourceKey::ChoirTmp),
            Just(ResourceKey::BrowserTab),
            "[ab./]{0,6}".prop_map(ResourceKey::File),
            "[ab]".prop_map(ResourceKey::Repo),
            "\\PC{0,8}".prop_map(ResourceKey::File),
            Just(ResourceKey::File(".choirtmp/send".into())),
        ];
        (key, any::<bool>())
            .prop_map(|(resource, x)| LockSpec { resource, mode: if x { LockMode::X } else { LockMode::S } })
    }

    proptest! {
        #[test]
        fn canonical_form_does_not_depend_on_order_or_repeats_and_is_final(
            locks in prop::collection::vec(any_lock(), 0..8),
            turn in 0..8usize,
        ) {
            let canonical = LockSet::canonical(locks.clone());
            let mut other = locks.clone();
            other.rotate_left(turn % locks.len().max(1));
            other.extend(locks.iter().take(turn).cloned());
            prop_assert_eq!(&LockSet::canonical(other), &canonical);
            prop_assert_eq!(&LockSet::canonical(canonical.0.clone()), &canonical);
        }

        #[test]
        fn folding_changes_nothing_about_what_a_set_excludes(
            one in prop::collection::vec(any_lock(), 0..6),
            other in prop::collection::vec(any_lock(), 0..6),
        ) {
            let single = |lock: &LockSpec| LockSet::canonical(vec![lock.clone()]);
            let unfolded = one.iter().any(|a| {
                other.iter().any(|b| single(a).excluded_by(&single(b), false).is_some())
            });
            let (one, other) = (LockSet::canonical(one), LockSet::canonical(other));
            prop_assert_eq!(one.excluded_by(&other, false).is_some(), unfolded);
            prop_assert_eq!(other.excluded_by(&one, false).is_some(), unfolded);
        }
    }
}
