/* SPDX-License-Identifier: Apache-2.0 */
/* check-harness.c: what the harness prints of failures by which scripts/tally knows that they are
 * no accident: this program runs itself, with tests that fail */
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

#include "../../self.h"
#include "../lib/harness.h"

static unsigned char bytes[100];

/* ---- what fails -------------------------------------------------------- */

static void fails__result(void **state)
{
	(void)state;
	want(PATTERN_GOOD, pattern_check(bytes, sizeof(bytes), 0, 1));
}

static void fails__condition(void **state)
{
	size_t bad = pattern_check(bytes, sizeof(bytes), 0, 1);

	(void)state;
	want_true(bad == PATTERN_GOOD, "at %zu", bad);
}

static void fails__message(void **state)
{
	bool good = memcmp(bytes, "x", 1) == 0;

	(void)state;
	want_true(good, "the target is wrong");
}

static void fails__late(void **state)
{
	(void)state;
	want(0, -ETIMEDOUT);
}

/* The child of a test that fails of something else. */
static void fails__child_unseen(void **state)
{
	struct child *child = child_start(NULL);

	(void)state;
	kill(child->pid, SIGABRT);
	/* Not reaped: the harness does that. */
	want(0, waitid(P_PID, (id_t)child->pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT));
	want(0, -ETIMEDOUT);
}

static void fails__child_lost(void **state)
{
	struct child *child = child_start(NULL);

	(void)state;
	kill(child->pid, SIGABRT);
	child_memory(child, CHILD_FOREIGN, 4096);
}

static void fails__child_killed(void **state)
{
	struct child *child = child_start(NULL);

	(void)state;
	kill(child->pid, SIGKILL);
	child_memory(child, CHILD_FOREIGN, 4096);
}

/* ---- what it says ------------------------------------------------------ */

static bool says(const char *test, const char *word)
{
	char line[PATH_MAX + 64], path[PATH_MAX];
	bool found = false, ran = false;
	FILE *out;

	assert_non_null(realpath(self_path(), path)); /* a shell is another self */
	snprintf(line, sizeof(line), "exec '%s' --fail %s 2>&1", path, test);
	out = popen(line, "re");
	assert_non_null(out);
	while (fgets(line, sizeof(line), out)) {
		ran = ran || strstr(line, "FAILED");
		found = found || strstr(line, word);
	}
	assert_int_not_equal(pclose(out), 0);
	assert_true(ran);
	return found;
}

static void tells__wrong_bytes(void **state)
{
	(void)state;
	assert_true(says("fails__result", "WRONG BYTES"));
	assert_true(says("fails__condition", "WRONG BYTES"));
	assert_true(says("fails__message", "WRONG BYTES"));
	assert_false(says("fails__late", "WRONG BYTES"));
}

static void tells__crash_of_a_child(void **state)
{
	(void)state;
	assert_true(says("fails__child_unseen", "CRASHED"));
	assert_true(says("fails__child_lost", "CRASHED"));
	assert_false(says("fails__child_killed", "CRASHED"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest failing[] = {
		TEST(fails__result),       TEST(fails__condition),    TEST(fails__message),
		TEST(fails__late),         TEST(fails__child_unseen), TEST(fails__child_lost),
		TEST(fails__child_killed),
	};
	const struct CMUnitTest tests[] = { TEST(tells__wrong_bytes),
					    TEST(tells__crash_of_a_child) };

	if (argc == 3 && !strcmp(argv[1], "--fail"))
		return harness_main(2, &argv[1], "failing", failing, 7);
	return harness_main(argc, argv, "harness", tests, 2);
}
