//! choir-scripted-model.
