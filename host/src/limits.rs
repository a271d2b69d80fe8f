//! Every bound of the host in one place, each with its reason. Bounds shared with the container are in
//! [`choir_messages::limits`].

use std::time::Duration;

/// Largest `config.json` or `secrets.json`, in bytes: thousands of agents fit; a wrong path to something huge does not.
pub const CONFIG_BYTES: u64 = 1024 * 1024;

/// Deepest nesting inside `config.json`: a model's `extra` is the only part that nests freely.
pub const CONFIG_DEPTH: usize = 32;

/// Longest secret value, in bytes: a private key in PEM fits.
pub const SECRET_BYTES: usize = 64 * 1024;

/// Longest line on the control socket, in bytes: the largest user message, JSON-escaped at its worst (each byte as
/// `\u00xx`), and its envelope.
pub const CONTROL_LINE_BYTES: usize = 6 * choir_messages::limits::USER_MESSAGE_BYTES + 4096;

/// Clients connected to the control socket at once.
pub const CONTROL_CLIENTS: usize = 64;

/// Requests one client may have under way at once; more are refused, not queued.
pub const CONTROL_REQUESTS: usize = 16;

/// Lines waiting to be written to one client. A client that does not read stops its own streams, nobody else's.
pub const CONTROL_WRITE_QUEUE: usize = 64;

/// How long one line may take to be written to a client before it counts as gone.
pub const CONTROL_WRITE: Duration = Duration::from_secs(10);

/// How long any single control operation may take inside choird unless its own deadline is named.
pub const CONTROL_OPERATION: Duration = Duration::from_secs(30);

/// How long the desk is asked for a run's next events before it is asked again: long, for a model may think long.
pub const LEDGER_FOLLOW: Duration = Duration::from_secs(60);

/// Longest path of a Unix socket in bytes, without its terminating zero (`sockaddr_un`).
pub const SOCKET_PATH_BYTES: usize = 107;

/// From launching a sandbox to its first hello. A cold start of choir-agent takes milliseconds; a busy machine may
/// take seconds.
pub const START_WITHIN: Duration = Duration::from_secs(20);

/// Time a living sandbox has to make a broken link anew before it counts as crashed. A killed one is noticed at once
/// by its process; this is for a link actor that is being restarted.
pub const LINK_GRACE: Duration = Duration::from_millis(500);

/// How long a killed sandbox may take to be gone before the session reports it as failed.
pub const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Time a stopping agent has to reach a safe point, flush and leave (`choir §17.2`).
pub const STOP_WITHIN: Duration = Duration::from_secs(10);

/// First wait before a crashed agent that made no progress is started again; doubles with each such crash.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(200);

/// Longest such wait.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Crashes in a row without a single new durable event before the agent is given up as failed.
pub const CRASHES_WITHOUT_PROGRESS: u32 = 8;

/// Crashes within [`CRASH_WINDOW`], with or without progress, before the agent is given up as failed.
pub const CRASHES_IN_WINDOW: usize = 120;

/// The window of [`CRASHES_IN_WINDOW`].
pub const CRASH_WINDOW: Duration = Duration::from_secs(600);

/// How long a database that is away is left alone before a session tries to open again.
pub const OPEN_RETRY: Duration = Duration::from_millis(500);

/// Deadline for one signal's acknowledgement: the agent answers once the event is in its journal, itself within 5 s.
pub const SIGNAL_DEADLINE: Duration = Duration::from_secs(8);

/// Wait before a signal is sent again to an agent that was not ready.
pub const SIGNAL_RETRY: Duration = Duration::from_millis(100);

/// Wait before a message is offered again to an agent whose queue was full.
pub const QUEUE_FULL_RETRY: Duration = Duration::from_secs(1);

/// Messages loaded from the inbox at a time.
pub const INBOX_PAGE: i64 = 64;

/// Age at which a message nobody could take is closed as expired, unless configured.
pub const MESSAGE_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Names asked for in one `GET_SECRETS`.
pub use choir_messages::limits::SECRET_NAMES;

/// Largest actor tree kept from one `REPORT_STATUS`, in bytes of JSON.
pub const STATUS_TREE_BYTES: usize = 64 * 1024;

/// Largest payload of one `REQUEST_APPROVAL`, in bytes of JSON.
pub const APPROVAL_BYTES: usize = 256 * 1024;

/// Time the whole of choird has to shut down in order before it ends regardless: stopping agents, then Postgres.
pub const SHUTDOWN_WITHIN: Duration = Duration::from_secs(40);

/// Capacity of an ordinary mailbox of the host's tree: commands of operators and events of one agent.
pub const MAILBOX: usize = 256;

/// Most agents of one choird: each costs a process, a socket and a handful of actors.
pub const AGENTS: usize = 256;
