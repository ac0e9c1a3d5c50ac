/* SPDX-License-Identifier: Apache-2.0 */
/* wherry doctor: gather facts about the machine, run all checks on them, print what they find. A
 * driver that hangs delays neither: every question and every check has a time limit. */
#include "doctor/doctor.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "output.h"
#include "platform/nvml.h"
#include "program.h"
#include "progress.h"

/* At most 9 s in all: facts are gathered in parallel, then checks run in parallel. */
#define FACTS_SECONDS 5.0 /* for libraries that wake GPUs */
#define VERBS_SECONDS 6.0 /* each NIC writes and reads memory of each GPU */
#define CHECK_SECONDS 3.0
#define CHECKS_MOST 64

static const struct check *const tables[] = { doctor_gpu_checks, doctor_pci_checks,
					      doctor_nic_checks, doctor_host_checks,
					      doctor_container_checks };

static const char *const words[] = {
	[PASS] = "PASS", [INFO] = "INFO", [UNKNOWN] = "UNKNOWN", [WARN] = "WARN", [FAIL] = "FAIL"
};

/* ---- facts ----------------------------------------------------------------------------------- */

/* What the threads fill in that may be abandoned: then it is never freed. */
struct inquiry {
	struct wh_tree tree;
	struct wh_topology *sysfs, *full; /* without and with NVML */
	struct wh_nvml *nvml;
	int nvml_error;
	char why[256];
	struct cuda_facts cuda;
	unsigned needs;
	struct verbs_facts verbs;
	bool verbs_ended;
};

static void inquiry_ask_sysfs(void *arg)
{
	struct inquiry *inquiry = arg;

	if (wh_topology_read(&inquiry->tree, &inquiry->sysfs))
		inquiry->sysfs = NULL;
	else
		topo_cpu(&inquiry->tree, inquiry->sysfs);
}

static void inquiry_ask_nvml(void *arg)
{
	struct inquiry *inquiry = arg;
	char path[WH_TREE_PATH];
	FILE *record = NULL;

	if (!topo_library(&inquiry->tree, WH_NVML_LIBRARY, path, sizeof(path)))
		snprintf(path, sizeof(path), "%s/lib/" WH_NVML_LIBRARY, inquiry->tree.root);
	inquiry->nvml_error = wh_nvml_open(path, &inquiry->nvml);
	if (inquiry->nvml_error) {
		snprintf(inquiry->why, sizeof(inquiry->why), "%s", wh_fail_text());
		return;
	}
	if (wh_topology_read(&inquiry->tree, &inquiry->full))
		return;
	topo_cpu(&inquiry->tree, inquiry->full);
	if (inquiry->tree.record) {
		snprintf(path, sizeof(path), "%s/nvml.txt", inquiry->tree.record);
		record = fopen(path, "we");
		wh_nvml_record(inquiry->nvml, record);
	}
	wh_topology_add_nvml(inquiry->full, inquiry->nvml, NULL);
	if (record)
		fclose(record);
	wh_nvml_close(inquiry->nvml);
}

static void inquiry_ask_cuda(void *arg)
{
	struct inquiry *inquiry = arg;

	facts_cuda(&inquiry->tree, &inquiry->cuda);
}

static void inquiry_ask_verbs(void *arg)
{
	struct inquiry *inquiry = arg;

	inquiry->verbs_ended = facts_verbs(
		&inquiry->tree, (inquiry->needs & NEEDS_MEMORY) == NEEDS_MEMORY,
		(inquiry->needs & NEEDS_MOVE) == NEEDS_MOVE, VERBS_SECONDS, &inquiry->verbs);
}

/* One of several probes that run at once, and the thread that waits for it. */
struct waiter {
	void (*probe)(void *arg);
	void *arg;
	double seconds;
	pthread_t thread;
	bool started, done;
};

static void *waiter_run(void *arg)
{
	struct waiter *waiter = arg;

	waiter->done = facts_bounded(waiter->probe, waiter->arg, waiter->seconds);
	return NULL;
}

static void waiters_run(struct waiter *waiters, size_t count, const char *what)
{
	struct progress progress;

	progress_start_steps(&progress, what, count, false);
	progress_watch(&progress);
	for (size_t i = 0; i < count; i++) {
		waiters[i].started =
			!pthread_create(&waiters[i].thread, NULL, waiter_run, &waiters[i]);
		if (!waiters[i].started)
			waiter_run(&waiters[i]);
	}
	for (size_t i = 0; i < count; i++) {
		if (waiters[i].started)
			pthread_join(waiters[i].thread, NULL);
		progress_move(&progress, i + 1);
	}
	progress_end(&progress);
}

/* Gather the facts that the checks need. True: no thread was abandoned, so `inquiry` can be freed.
 */
static bool inquiry_gather(struct doctor *doctor, struct inquiry *inquiry)
{
	const struct {
		unsigned needs;
		void (*probe)(void *arg);
		double seconds;
	} asked[] = {
		{ NEEDS_SYSFS, inquiry_ask_sysfs, CHECK_SECONDS },
		{ NEEDS_NVML, inquiry_ask_nvml, FACTS_SECONDS },
		{ NEEDS_CUDA, inquiry_ask_cuda, FACTS_SECONDS },
		/* Keeps its own time limit, and returns partial answers. */
		{ NEEDS_VERBS, inquiry_ask_verbs, VERBS_SECONDS + 0.5 },
	};
	struct waiter waiters[4];
	bool done[4] = { true, true, true, true };
	size_t count = 0, at = 0;

	for (size_t i = 0; i < 4; i++)
		if ((inquiry->needs & asked[i].needs) == asked[i].needs)
			waiters[count++] = (struct waiter){ .probe = asked[i].probe,
							    .arg = inquiry,
							    .seconds = asked[i].seconds };
	if (count)
		waiters_run(waiters, count, "asking the GPUs and NICs");
	for (size_t i = 0; i < 4; i++)
		if ((inquiry->needs & asked[i].needs) == asked[i].needs)
			done[i] = waiters[at++].done;
	doctor->topology = done[0] ? inquiry->sysfs : NULL;
	doctor->late = !done[1];
	if (done[1]) {
		doctor->nvml = inquiry->full;
		doctor->nvml_error = inquiry->nvml_error;
		doctor->nvml_why = inquiry->why;
	}
	if (doctor->nvml)
		doctor->topology = inquiry->full;
	/* Copied only if its thread has ended: an abandoned thread may still write to it. */
	if (done[2])
		doctor->cuda = inquiry->cuda;
	doctor->cuda_late = !done[2];
	if (done[3])
		doctor->verbs = inquiry->verbs;
	return done[0] && done[1] && done[2] && done[3] &&
	       (inquiry->verbs_ended || (inquiry->needs & NEEDS_VERBS) != NEEDS_VERBS);
}

/* ---- checks ---------------------------------------------------------------------------------- */

struct task {
	const struct doctor *doctor;
	const struct check *check;
	struct finding finding;
};

static void task_run(void *arg)
{
	struct task *task = arg;
	double start = facts_now();

	doctor_check(task->doctor, task->check, &task->finding);
	task->finding.seconds = facts_now() - start;
}

/* Run all checks at once; findings[i] belongs to checks[i]. False: some did not end in time. */
static bool tasks_run(const struct doctor *doctor, const struct check *const *checks, size_t count,
		      struct finding *findings)
{
	struct waiter waiters[CHECKS_MOST] = { 0 };
	bool all = true;

	for (size_t i = 0; i < count; i++) {
		struct task *task = calloc(1, sizeof(*task));

		if (!task)
			exit(fail(ENOMEM, "out of memory"));
		*task = (struct task){ .doctor = doctor, .check = checks[i] };
		waiters[i] =
			(struct waiter){ .probe = task_run, .arg = task, .seconds = CHECK_SECONDS };
	}
	waiters_run(waiters, count, "checking");
	for (size_t i = 0; i < count; i++) {
		struct task *task = waiters[i].arg;

		all &= waiters[i].done;
		if (waiters[i].done) {
			findings[i] = task->finding;
			free(task);
			continue;
		}
		findings[i] = (struct finding){ .seconds = CHECK_SECONDS };
		finding_add(&findings[i], UNKNOWN, "no answer within %.0f s", CHECK_SECONDS);
	}
	return all;
}

/* ---- --only and --skip ----------------------------------------------------------------------- */

/* Does a word name a check? "pci" names all of pci.*. */
static bool id_matches(const char *word, size_t length, const char *id)
{
	return strncmp(word, id, length) == 0 && (id[length] == '\0' || id[length] == '.');
}

static bool id_is_listed(const char *list, const char *id)
{
	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (id_matches(list, strcspn(list, ","), id))
			return true;
	return false;
}

/* Refuse a list with a word that names no check. 0, or an exit code. */
static int ids_validate(const char *option, const char *list)
{
	for (; *list; list += strcspn(list, ","), list += *list == ',') {
		struct suggestion suggestion = { 0 };
		char word[64];
		bool known = false;

		snprintf(word, sizeof(word), "%.*s", (int)strcspn(list, ","), list);
		suggestion.word = word;
		for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
			for (const struct check *check = tables[i]; check->id; check++) {
				known |= *word && id_matches(word, strlen(word), check->id);
				suggest(&suggestion, check->id);
			}
		}
		if (!known && suggestion.best)
			return usage_error("--%s: no check '%s'; did you mean '%s'?", option, word,
					   suggestion.best);
		if (!known)
			return usage_error("--%s: no check '%s'; --list shows them", option, word);
	}
	return 0;
}

static size_t checks_choose(const struct arguments *arguments, const struct check **out)
{
	const char *only = argument(arguments, "only"), *skip = argument(arguments, "skip");
	size_t count = 0;

	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct check *check = tables[i]; check->id; check++)
			if (count < CHECKS_MOST && (!only || id_is_listed(only, check->id)) &&
			    (!skip || !id_is_listed(skip, check->id)))
				out[count++] = check;
	/* Whoever names a peer wants to hear of it. */
	if (argument(arguments, "peer") && count < CHECKS_MOST)
		out[count++] = &doctor_peer_check;
	return count;
}

/* ---- output ---------------------------------------------------------------------------------- */

static const char *or_null(const char *text)
{
	return *text ? text : NULL;
}

static json_t *findings_to_json(const struct check *const *checks, const struct finding *findings,
				size_t count, enum verdict worst)
{
	json_t *object = output_new(), *array = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(array,
				      json_pack("{s:s, s:s, s:s, s:o, s:o, s:f}", "id",
						checks[i]->id, "title", checks[i]->title, "verdict",
						words[findings[i].verdict], "evidence",
						output_text(findings[i].evidence), "fix",
						output_text(or_null(findings[i].fix)), "seconds",
						findings[i].seconds));
	json_object_set_new(object, "verdict", json_string(words[worst]));
	json_object_set_new(object, "checks", array);
	return object;
}

static const char *verdict_tint(const struct screen *screen, enum verdict verdict)
{
	static const enum tint tints[] = { [PASS] = TINT_GOOD,
					   [INFO] = TINT_FAIR,
					   [UNKNOWN] = TINT_FAINT,
					   [WARN] = TINT_POOR,
					   [FAIL] = TINT_BAD };

	return screen_tint(screen, tints[verdict]);
}

#define NARROW 60 /* columns; below, verdict and id have a line of their own */

/* Print verdict and id, as far as the evidence. */
static void print_name(const char *name, enum verdict verdict, const struct screen *screen,
		       int columns)
{
	const char *word = words[verdict];

	if (columns >= NARROW) {
		printf("%s%-7s%s %-14s ", verdict_tint(screen, verdict), word, screen_plain(screen),
		       name);
		return;
	}
	printf("%s%s%s", verdict_tint(screen, verdict), word, screen_plain(screen));
	text_fold(stdout, name, 2, (int)strlen(word), columns);
	fputs("  ", stdout);
}

/* The check found only that the machine lacks what it looks at. */
static bool doctor_is_absent(const struct finding *finding)
{
	return finding->absent && !*finding->fix &&
	       strcmp(finding->evidence, doctor_absences[finding->absent]) == 0;
}

/* How to name an absent check: "gpu" for the first of gpu.* if all of them are absent, "" for the
 * others then; else its id. */
static void doctor_absent_name(const struct check *const *checks, const struct finding *findings,
			       size_t count, size_t at, char *out, size_t size)
{
	size_t length = strcspn(checks[at]->id, ".");

	snprintf(out, size, "%.*s", (int)length, checks[at]->id);
	for (size_t i = 0; i < count; i++) {
		if (!id_matches(out, length, checks[i]->id))
			continue;
		if (!doctor_is_absent(&findings[i])) {
			snprintf(out, size, "%s", checks[at]->id);
			return;
		}
	}
	for (size_t i = 0; i < at; i++)
		if (id_matches(out, length, checks[i]->id)) {
			*out = '\0';
			return;
		}
}

/* Print one line for all checks that do not apply. */
static void doctor_print_absent(const struct check *const *checks, const struct finding *findings,
				size_t count, const struct screen *screen, int columns, int indent)
{
	bool seen[ABSENT_PCI + 1] = { false };
	char text[1024] = "", name[64];
	size_t used = 0, absent = 0;

	for (size_t i = 0; i < count; i++)
		if (doctor_is_absent(&findings[i])) {
			seen[findings[i].absent] = true;
			absent++;
		}
	/* The two others name both kinds already. */
	seen[ABSENT_PCI] &= !seen[ABSENT_GPU] || !seen[ABSENT_NIC];
	for (int what = ABSENT_GPU; what <= ABSENT_PCI; what++)
		if (seen[what])
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
						 used ? "; " : "", doctor_absences[what]);
	used += (size_t)snprintf(text + used, sizeof(text) - used, " (");
	for (size_t i = 0, named = 0; i < count; i++) {
		if (!doctor_is_absent(&findings[i]))
			continue;
		doctor_absent_name(checks, findings, count, i, name, sizeof(name));
		if (*name && used < sizeof(text))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
						 named++ ? ", " : "", name);
	}
	if (used < sizeof(text))
		snprintf(text + used, sizeof(text) - used, ")");
	snprintf(name, sizeof(name), "%zu checks", absent);
	print_name(name, INFO, screen, columns);
	text_fold(stdout, text, indent, indent, columns);
}

static void findings_print(const struct check *const *checks, const struct finding *findings,
			   size_t count, const struct screen *screen)
{
	int columns = screen->columns ? screen->columns : SCREEN_COLUMNS,
	    indent = columns < NARROW ? 2 : 23;
	size_t totals[FAIL + 1] = { 0 }, absent = 0;
	char sums[128];

	for (size_t i = 0; i < count; i++)
		absent += doctor_is_absent(&findings[i]);
	for (size_t i = 0; i < count; i++) {
		const struct finding *finding = &findings[i];

		totals[finding->verdict]++;
		if (absent > 1 && doctor_is_absent(finding))
			continue;
		print_name(checks[i]->id, finding->verdict, screen, columns);
		text_fold(stdout, finding->evidence, indent, indent, columns);
		if (*finding->fix) {
			printf("%*s%s", indent, "", screen->ascii ? "-> " : "\u2192 ");
			text_fold(stdout, finding->fix, indent + 3, indent + 3, columns);
		}
	}
	if (absent > 1)
		doctor_print_absent(checks, findings, count, screen, columns, indent);
	snprintf(sums, sizeof(sums),
		 "%zu passed, %zu informational, %zu warnings, %zu failed, %zu unknown",
		 totals[PASS], totals[INFO], totals[WARN], totals[FAIL], totals[UNKNOWN]);
	putchar('\n');
	text_fold(stdout, sums, 0, 0, columns);
}

static int checks_list(void)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct check *check = tables[i]; check->id; check++)
			printf("%-14s %s\n", check->id, check->title);
	return EXIT_PASS;
}

static int verdict_exit_code(enum verdict worst)
{
	return worst == FAIL ? EXIT_FAIL : worst == WARN ? EXIT_WARNING : EXIT_PASS;
}

static int doctor_examine(const struct arguments *arguments, const struct wh_tree *tree,
			  const struct screen *screen)
{
	struct inquiry *inquiry = calloc(1, sizeof(*inquiry));
	struct doctor *doctor = calloc(1, sizeof(*doctor));
	const struct check *checks[CHECKS_MOST];
	struct finding findings[CHECKS_MOST];
	size_t count = checks_choose(arguments, checks);
	enum verdict worst = PASS;
	int code = 0;
	bool ended;

	if (!inquiry || !doctor)
		exit(fail(ENOMEM, "out of memory"));
	inquiry->tree = doctor->tree = *tree;
	doctor->peer = argument(arguments, "peer");
	for (size_t i = 0; i < count; i++)
		inquiry->needs |= checks[i]->needs;
	ended = inquiry_gather(doctor, inquiry);
	ended &= tasks_run(doctor, checks, count, findings);
	for (size_t i = 0; i < count; i++)
		worst = findings[i].verdict > worst ? findings[i].verdict : worst;
	if (argument(arguments, "json"))
		code = output_print(findings_to_json(checks, findings, count, worst));
	else
		findings_print(checks, findings, count, screen);
	code = code ? code : verdict_exit_code(worst);
	if (!ended || facts_hang()) {
		/* A thread that hangs in a driver would keep exit() from returning. */
		if (fflush(stdout))
			code = EXIT_FAIL;
		_exit(code);
	}
	wh_topology_free(inquiry->sysfs);
	wh_topology_free(inquiry->full);
	free(inquiry);
	free(doctor);
	return code;
}

static int doctor_run(const struct arguments *arguments)
{
	const char *only = argument(arguments, "only"), *skip = argument(arguments, "skip"),
		   *number = argument(arguments, "errno");
	struct screen screen;
	struct wh_tree tree;
	int code = screen_open(arguments, &screen);

	if (!code && only)
		code = ids_validate("only", only);
	if (!code && skip)
		code = ids_validate("skip", skip);
	if (code)
		return code;
	if (number)
		return doctor_explain(number, argument(arguments, "json"));
	if (argument(arguments, "list"))
		return checks_list();
	code = topo_tree(arguments, &tree);
	return code ? code : doctor_examine(arguments, &tree, &screen);
}

static const struct command_option options[] = {
	{ .name = "only",
	  .argument = "ID,...",
	  .help = "run only these checks; 'pci' names all of pci.*" },
	{ .name = "skip", .argument = "ID,...", .help = "run all checks but these" },
	{ .name = "list", .help = "list the checks" },
	{ .name = "errno",
	  .argument = "N",
	  .help = "explain the errno of a failed registration with a NIC" },
	{ .name = "peer",
	  .argument = "URL",
	  .help = "also say what is shared with the container of that engine" },
	{ .name = "json", .letter = 'j', .help = "print JSON" },
	TOPO_ROOT_OPTION("DIR/sys, DIR/proc and DIR/dev"),
	TOPO_RECORD_OPTION,
	SCREEN_OPTIONS,
	{ 0 },
};

const struct command command_doctor = {
	.name = "doctor",
	.usage = "",
	.summary = "Find what keeps transfers off the fast routes, and how to fix it",
	.details =
		"Changes nothing. Exits with 0 if no check found a problem, 1 after a warning, 2 "
		"if a check failed.\n\n"
		"No check takes longer than 3 s, and all together take less than 10 s. Run as "
		"root, it sees more.",
	.examples = "wherry doctor\n"
		    "wherry doctor --only pci,nic.gid --json\n"
		    "wherry doctor --errno EFAULT\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = doctor_run,
};
