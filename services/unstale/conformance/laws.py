"""All laws, by the sentence that the report prints. One function a law: `law(subject) -> Finding`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from unstale.conformance import arithmetic, contract, declared, state
from unstale.conformance.finding import Finding
from unstale.conformance.policy_under_test import PolicyUnderTest

Law = Callable[[PolicyUnderTest], Finding]


def _by_sentence(*laws: Law) -> Mapping[str, Law]:
    return MappingProxyType({law.__name__.replace("_", " "): law for law in laws})


CONTRACT = _by_sentence(
    contract.a_step_has_the_promised_shapes,
    contract.arguments_are_not_written_to,
    contract.the_same_rounds_give_the_same_bits,
    contract.no_round_is_kept,
    contract.two_policies_share_nothing,
    contract.a_round_that_does_not_count_moves_nothing,
    contract.what_is_sent_to_clients_is_never_overwritten,
    contract.no_random_number_is_drawn_but_from_streams,
    state.a_policy_continues_from_its_state,
    state.a_saved_state_is_not_shared,
    state.a_state_holds_plain_values,
    state.it_runs_with_other_numbers_of_clients_and_updates,
    state.it_runs_where_no_end_and_no_size_of_rounds_is_known,
    arithmetic.empty_rounds_give_finite_steps,
    arithmetic.rounds_of_any_size_give_finite_steps,
    arithmetic.great_staleness_gives_finite_steps,
    arithmetic.tiny_and_huge_updates_give_finite_steps,
    arithmetic.updates_of_a_client_that_is_there_twice_are_taken,
    arithmetic.equal_changes_of_buffers_are_made_as_they_are,
)
"""What holds for stages around a policy, too."""

LAWS: Mapping[str, Law] = MappingProxyType(
    {
        **CONTRACT,
        **_by_sentence(
            state.it_runs_in_both_profiles_and_in_synchronous_rounds,
            state.it_runs_with_every_option,
            arithmetic.the_order_of_arrival_changes_rounding_only,
            arithmetic.equal_fresh_updates_are_a_step_along_them,
            arithmetic.the_same_round_again_and_again_gives_the_same_step,
            arithmetic.updates_twice_as_long_give_a_step_twice_as_long,
            arithmetic.a_large_model_steps_as_a_small_one,
            declared.it_says_what_it_is,
            declared.what_it_names_is_known,
        ),
    }
)
