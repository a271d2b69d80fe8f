//! choir-models.
