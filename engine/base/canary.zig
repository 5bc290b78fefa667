//! Canaries: mutations of the protocol that the simulator switches on to prove that its checkers
//! see them. In the library `build_options.simulation` is false and every test below folds to
//! `false`. Who uses them: tests/sim (each must be caught by its named checker).

const std = @import("std");
const build_options = @import("build_options");

pub const Canary = enum {
    none,
    /// A call returns when its own result is complete, before the coordinator has committed.
    publish_before_commit,
    /// What is overwritten in the caller's buffer is not saved before.
    forget_shadow,
    /// Frames of a passed attempt are taken for current ones.
    accept_older_attempt,
    /// Descriptors are not compared.
    skip_fingerprint,
    /// A finished chunk is kept whichever attempt reduced it, and listed with the current members.
    keep_without_attempt,
    /// Two operations in flight receive into the same slots.
    shared_slots,
    /// The owner of an encoded chunk keeps its own values instead of decoding what all others get.
    keep_own_values,
    /// What a codec loses is carried on at once, whether or not the operation is committed.
    spend_residual,
    /// An encoding that is done again carries on what the one before has lost.
    residual_of_last_attempt,
    /// A sync elects the content of most members, whatever its revision.
    ignore_revision,
    /// A leaf is taken without a look at its hash.
    skip_leaf_hash,
    /// A leaf that was fetched before the sync is taken for the one that was elected.
    trust_staged,
    /// A leaf goes to the user's memory as it arrives.
    write_before_commit,
    /// A coordinator that has started again believes what any member says was decided.
    believe_any_commit,
    /// It asks nobody what the coordinator before it decided.
    forget_claims,
    /// It answers those who are back before all are.
    answer_early,
    /// A view leaves before the removal that it relies on is in the journal.
    view_before_removal,
    /// Epochs are, as far as the journal goes: a coordinator whose journal failed is forgotten.
    reuse_epochs,
    /// Rounds are numbered from the beginning again after a restart.
    reuse_rounds,
    /// A member that has voted, and has no coordinator, takes its vote back.
    withdraw_vote,
    /// A link that stays broken costs a member its place, whether or not a ring goes around it.
    leave_for_a_link,
};

pub var active: Canary = .none;

pub inline fn on(comptime canary: Canary) bool {
    return build_options.simulation and active == canary;
}
