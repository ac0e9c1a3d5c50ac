/* SPDX-License-Identifier: Apache-2.0 */
/* link.c: what a link makes of the hellos that come while it does not know whether a member has
 * left. */
#include <errno.h>
#include <string.h>

#include "unit.h"

#include "weights/run/run.h"

#define EPOCH 77

/* A link to a target that has said hello, and whose control block could not be read. */
struct fixture {
	struct wh_weights weights;
	struct wh_link_to link;
	struct wh_plan plan;
	struct wh_weights_hello hello;
	uint32_t counts[3];
};

static int setup(void **state)
{
	static struct fixture f;

	memset(&f, 0, sizeof(f));
	pthread_cond_init(&f.weights.changed, NULL);
	f.weights.plan = &f.plan;
	f.weights.me = 1;
	f.weights.node_regions[0] = &f.counts[0];
	f.weights.node_regions[1] = &f.counts[1];
	f.weights.node_steps = &f.counts[2];
	f.link.weights = &f.weights;
	f.link.first = WH_NO_STEP;
	f.hello = (struct wh_weights_hello){ .control = 5,
					     .control_bytes =
						     wh_weights_control_bytes(&f.weights, 0) };
	wh_link_heard(&f.link, &f.hello, EPOCH);
	f.link.doubt = 1;
	f.link.refusal = -EACCES;
	f.link.question = 2;
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	pthread_cond_destroy(&f->weights.changed);
	return 0;
}

static void answer(struct fixture *f, uint64_t question)
{
	f->hello.flags = WH_HELLO_ANSWERS | question << WH_HELLO_ANSWER;
	wh_link_heard(&f->link, &f->hello, EPOCH);
}

/* It was there when it answered, and says no. */
static void heard__answer(void **state)
{
	struct fixture *f = *state;

	answer(f, 2);
	assert_int_equal(f->link.refused, -EACCES);
	assert_int_equal(f->link.doubt, 0);
}

/* What it sent before it left, and before the look, is no answer: it has left. */
static void heard__late_answer(void **state)
{
	struct fixture *f = *state;

	answer(f, 1);
	assert_int_equal(f->link.refused, 0);
	assert_int_not_equal(f->link.doubt, 0);
	f->hello.flags = WH_HELLO_LEAVES;
	wh_link_heard(&f->link, &f->hello, EPOCH);
	assert_int_equal(f->link.refused, 0);
	assert_true(f->link.gone);
	assert_true(f->link.ever);
}

/* The number of a question comes back in the answer. */
static void heard__question(void **state)
{
	struct fixture *f = *state;

	f->hello.flags = WH_HELLO_ASKS | UINT64_C(9) << WH_HELLO_QUESTION;
	wh_link_heard(&f->link, &f->hello, EPOCH);
	assert_true(f->link.answer);
	assert_int_equal(f->link.answering, 9);
	assert_int_equal(f->link.refused, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(heard__answer, setup, teardown),
		cmocka_unit_test_setup_teardown(heard__late_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(heard__question, setup, teardown),
	};

	return cmocka_run_group_tests_name("weights-link", tests, NULL, NULL);
}
