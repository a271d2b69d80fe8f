//! choir-replicator.
