//! The log as files (C2SP tlog-tiles): hashes in tiles of 256, statements in bundles of 256, and one checkpoint. Whoever
//! has the files can prove anything about the log without its keeper; any web server can publish them as they are.
//!
//! A tile of level `L` holds the hashes of [nodes](NodeId) of level `8 L`; the levels between are computed from it. A full
//! tile never changes. The one at the right edge is written anew, under a name with its width, each time it grows.

use std::fmt::Write as _;

use choir_messages::chain::Digest;

use crate::tree::{Frontier, NodeId, NodeSource, TreeError, TreeHead, fold, leaf_hash};

/// Hashes in a full tile, and statements in a full bundle.
pub const TILE_WIDTH: u64 = 1 << TILE_HEIGHT;

/// Levels of the tree in one level of tiles.
const TILE_HEIGHT: u8 = 8;

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// Largest statement that a bundle can hold: its length is written in two bytes.
pub const MAX_ENTRY_BYTES: usize = u16::MAX as usize;

/// What is wrong with a log's files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// A file that the log should have, or one of another length.
    #[error("the log's file {0} is missing or cut; restore the log's folder from a backup")]
    Missing(String),
    /// The tiles are not those of the checkpoint.
    #[error(
        "the log's tiles do not have the root that its checkpoint signs; restore the log's folder from a backup"
    )]
    OtherRoot,
    /// A statement too long for a bundle.
    #[error("a statement of {0} bytes does not fit into the log, which takes {MAX_ENTRY_BYTES}")]
    TooLong(usize),
    /// A bundle that cannot be taken apart.
    #[error("the log's bundle of statements is damaged; restore the log's folder from a backup")]
    BadBundle,
    /// The tree itself.
    #[error("{0}")]
    Tree(#[from] TreeError),
}

/// One file of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileFile {
    /// Its path below the log's folder.
    pub path: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The place of a tile or, without a level, of a bundle of statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// The level of tiles, from 0; `None` for a bundle of statements.
    pub level: Option<u8>,
    /// Its place from the left.
    pub index: u64,
    /// How many hashes or statements it holds: 1 to 256.
    pub width: u16,
}

impl Tile {
    /// The tile of this level and place in a log of `size` statements, or `None` if it has nothing in it yet.
    #[must_use]
    pub fn of(level: Option<u8>, index: u64, size: u64) -> Option<Self> {
        let shift = u32::from(level.unwrap_or(0)) * u32::from(TILE_HEIGHT);
        let nodes = size.checked_shr(shift).unwrap_or(0);
        let width = nodes.saturating_sub(index.checked_mul(TILE_WIDTH)?).min(TILE_WIDTH);
        let width = u16::try_from(width).ok().filter(|width| *width > 0)?;
        Some(Self { level, index, width })
    }

    /// Its path: `tile/<level or entries>/<index>`, the index in groups of three digits, and `.p/<width>` unless full.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::from("tile/");
        // Writing to a string cannot fail.
        let _ = match self.level {
            Some(level) => write!(path, "{level}/"),
            None => write!(path, "entries/"),
        };
        let mut groups = vec![self.index % 1000];
        let mut rest = self.index / 1000;
        while rest > 0 {
            groups.push(rest % 1000);
            rest /= 1000;
        }
        while let Some(group) = groups.pop() {
            let _ = if groups.is_empty() { write!(path, "{group:03}") } else { write!(path, "x{group:03}/") };
        }
        if u64::from(self.width) < TILE_WIDTH {
            let _ = write!(path, ".p/{}", self.width);
        }
        path
    }

    fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_WIDTH
    }
}

/// Nodes read from tiles of a log of some size. `fetch` gives a file's bytes by its path.
pub struct TileNodes<F> {
    size: u64,
    fetch: F,
}

impl<F: Fn(&str) -> Option<Vec<u8>>> TileNodes<F> {
    /// The nodes of a log of `size` statements.
    pub const fn new(size: u64, fetch: F) -> Self {
        Self { size, fetch }
    }
}

impl<F: Fn(&str) -> Option<Vec<u8>>> NodeSource for TileNodes<F> {
    fn node(&self, id: NodeId) -> Option<Digest> {
        let span = 1u64 << (id.level % TILE_HEIGHT);
        let first = id.index.checked_mul(span)?;
        let tile = Tile::of(Some(id.level / TILE_HEIGHT), first / TILE_WIDTH, self.size)?;
        // A tile that has filled up since may have taken the place of a narrower one.
        let full = Tile { width: u16::try_from(TILE_WIDTH).ok()?, ..tile };
        let bytes = (self.fetch)(&tile.path()).or_else(|| (self.fetch)(&full.path()))?;
        let hashes = hashes(&bytes)?;
        let from = usize::try_from(first % TILE_WIDTH).ok()?;
        let hashes = hashes.get(from..from.checked_add(usize::try_from(span).ok()?)?)?;
        subtree(hashes)
    }
}

fn hashes(bytes: &[u8]) -> Option<Vec<Digest>> {
    let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
    rest.is_empty().then(|| hashes.iter().map(|hash| Digest::from_bytes(*hash)).collect())
}

/// The root over a complete subtree's hashes.
fn subtree(hashes: &[Digest]) -> Option<Digest> {
    let mut level = hashes.to_vec();
    while level.len() > 1 {
        level = level.chunks(2).filter_map(fold).collect();
    }
    level.pop()
}

/// The right edge of a log kept in files: appends statements and says which files to write. It holds at most one tile a
/// level and one bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileWriter {
    frontier: Frontier,
    /// The hashes of the tile that is filling, by level.
    levels: Vec<Vec<Digest>>,
    /// The bundle that is filling.
    bundle: Vec<u8>,
}

impl Default for TileWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl TileWriter {
    /// A log without statements.
    #[must_use]
    pub const fn new() -> Self {
        Self { frontier: Frontier::new(), levels: Vec::new(), bundle: Vec::new() }
    }

    /// Goes on with the log of this head, from its files, which must have its root.
    pub fn open(head: &TreeHead, fetch: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, TileError> {
        let missing = |tile: &Tile| TileError::Missing(tile.path());
        let edge = |level: Option<u8>| {
            let shift = u32::from(level.unwrap_or(0)) * u32::from(TILE_HEIGHT);
            let nodes = head.size >> shift.min(63);
            Tile::of(level, nodes / TILE_WIDTH, head.size)
        };
        let (mut levels, mut level) = (Vec::new(), 0u8);
        while head.size >> (u32::from(level) * u32::from(TILE_HEIGHT)) > 0 {
            let held = match edge(Some(level)) {
                None => Vec::new(),
                Some(tile) => {
                    let bytes = fetch(&tile.path()).ok_or_else(|| missing(&tile))?;
                    let held = hashes(&bytes).filter(|held| held.len() == usize::from(tile.width));
                    held.ok_or_else(|| missing(&tile))?
                }
            };
            levels.push(held);
            level += 1;
        }
        let bundle = match edge(None) {
            None => Vec::new(),
            Some(tile) => {
                let bytes = fetch(&tile.path()).ok_or_else(|| missing(&tile))?;
                if entries(&bytes)?.len() != usize::from(tile.width) {
                    return Err(missing(&tile));
                }
                bytes
            }
        };
        let frontier = Frontier::from_nodes(head.size, &TileNodes::new(head.size, &fetch))?;
        if frontier.head() != *head {
            Err(TileError::OtherRoot)
        } else {
            Ok(Self { frontier, levels, bundle })
        }
    }

    /// Appends a statement. Returns the files that are full with it, to be written once.
    pub fn append(&mut self, statement: &[u8]) -> Result<Vec<TileFile>, TileError> {
        let length = u16::try_from(statement.len()).map_err(|_| TileError::TooLong(statement.len()))?;
        let mut full = Vec::new();
        let completed = self.frontier.append(leaf_hash(statement))?;
        let size = self.frontier.size();
        self.bundle.extend_from_slice(&length.to_be_bytes());
        self.bundle.extend_from_slice(statement);
        if size.is_multiple_of(TILE_WIDTH) {
            let bytes = std::mem::take(&mut self.bundle);
            full.extend(file(None, size / TILE_WIDTH - 1, size, bytes));
        }
        for node in completed.iter().filter(|node| node.id.level % TILE_HEIGHT == 0) {
            let level = node.id.level / TILE_HEIGHT;
            let place = usize::from(level);
            if self.levels.len() <= place {
                self.levels.resize_with(place + 1, Vec::new);
            }
            let Some(held) = self.levels.get_mut(place) else { continue };
            held.push(node.hash);
            if held.len() as u64 == TILE_WIDTH {
                let bytes = std::mem::take(held).iter().flat_map(|hash| *hash.bytes()).collect();
                full.extend(file(Some(level), node.id.index / TILE_WIDTH, size, bytes));
            }
        }
        Ok(full)
    }

    /// The files at the right edge as they stand, to be written before the checkpoint of [`TileWriter::head`].
    #[must_use]
    pub fn edge(&self) -> Vec<TileFile> {
        let size = self.frontier.size();
        let mut files = Vec::new();
        if !self.bundle.is_empty() {
            files.extend(file(None, size / TILE_WIDTH, size, self.bundle.clone()));
        }
        for (level, held) in (0u8..).zip(&self.levels).filter(|(_, held)| !held.is_empty()) {
            let index = (size >> (u32::from(level) * u32::from(TILE_HEIGHT))) / TILE_WIDTH;
            files.extend(file(
                Some(level),
                index,
                size,
                held.iter().flat_map(|hash| *hash.bytes()).collect(),
            ));
        }
        files
    }

    /// The log's size and root.
    #[must_use]
    pub fn head(&self) -> TreeHead {
        self.frontier.head()
    }
}

fn file(level: Option<u8>, index: u64, size: u64, bytes: Vec<u8>) -> Option<TileFile> {
    Tile::of(level, index, size).map(|tile| TileFile { path: tile.path(), bytes })
}

/// The paths of the narrower versions of a file that is full now, which nobody needs any more: the folder to remove.
#[must_use]
pub fn superseded(file: &TileFile) -> Option<String> {
    (!file.path.contains(".p/")).then(|| format!("{}.p", file.path))
}

/// The statements in a bundle.
pub fn entries(bundle: &[u8]) -> Result<Vec<&[u8]>, TileError> {
    let (mut rest, mut entries) = (bundle, Vec::new());
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<2>().ok_or(TileError::BadBundle)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (entry, behind) = behind.split_at_checked(length).ok_or(TileError::BadBundle)?;
        entries.push(entry);
        rest = behind;
        if entries.len() as u64 > TILE_WIDTH {
            return Err(TileError::BadBundle);
        }
    }
    Ok(entries)
}

/// The statement at this place of a log of `size` statements, from its bundle.
pub fn entry(index: u64, size: u64, fetch: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Vec<u8>, TileError> {
    let out = TreeError::OutOfRange { asked: index, size };
    let tile = Tile::of(None, index / TILE_WIDTH, size).filter(|_| index < size).ok_or(out)?;
    let full = Tile { width: u16::try_from(TILE_WIDTH).unwrap_or(u16::MAX), ..tile };
    let bytes = fetch(&tile.path()).or_else(|| if tile.is_full() { None } else { fetch(&full.path()) });
    let bytes = bytes.ok_or_else(|| TileError::Missing(tile.path()))?;
    let place = usize::try_from(index % TILE_WIDTH).map_err(|_| out)?;
    entries(&bytes)?.get(place).map(|entry| entry.to_vec()).ok_or(TileError::BadBundle)
}

#[cfg(test)]
mod tests;
