/* SPDX-License-Identifier: Apache-2.0 */
/* sim: runs simulated worlds, and says which failed and how to see it again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

static const char usage[] =
	"usage: sim SEED [--long] [--trace] [--until T] [--stop-at T] [--stop-spinning]\n"
	"           [--set NAME=VALUE]... [--twice] [--shrink]\n"
	"       sim --seeds FIRST COUNT [--jobs N] [--long] [--stop] [--twice] [--set ...]\n"
	"       sim --for SECONDS [--from FIRST] [--jobs N] [--long] [--set ...]\n"
	"       sim --kept FILE [--jobs N] [--twice]\n"
	"       sim --world NAME [--trace ...] | --every-world | --worlds | --options SEED\n"
	"\n"
	"A seed is a world: hosts, engines, programs, a network, faults, and what each does when. "
	"The\n"
	"same seed and program give the same run, whatever else the machine does.\n"
	"\n"
	"  --seeds FIRST COUNT  that many seeds, a process each\n"
	"  --for SECONDS        seeds for so long, from FIRST or from one that the time of day "
	"chooses\n"
	"  --kept FILE          the seeds of a file: one a line, with the options behind it\n"
	"  --world NAME         a world that is told what happens in it; --worlds lists them\n"
	"  --long               20 times as long a time of faults\n"
	"  --trace              every call and what it returned\n"
	"  --until T            stop at that second of the world's clock, which begins with 1000\n"
	"  --stop-at T          print the stack of the thread that runs then (addr2line)\n"
	"  --stop-spinning      the same at the first busy loop\n"
	"  --set NAME=VALUE     another value than the seed's; --options SEED lists all\n"
	"  --twice              run each twice, and compare the hashes over all calls\n"
	"  --shrink             find a smaller run that fails alike\n"
	"  --stop               stop at the first seed that fails\n"
	"  --jobs N             so many at a time; the default is the number of CPUs\n"
	"\n"
	"Exits 0 if all went well, 1 if a run failed, 64 for a wrong command line.\n";

/* What the command line asks for. */
static struct {
	struct run run;
	uint64_t first, count;
	int seconds, jobs;
	const char *kept;
	bool many, twice, shrink, stop, options, every_world, verdicts;
} asked;

static struct {
	uint64_t passed, failed, batches;
	double cpu, longest; /* s */
	struct run slowest; /* what took the longest */
} total;

/* ---- many runs ------------------------------------------------------------------------------- */

/* A run in progress. */
static struct job {
	int child; /* 0: none */
	bool again; /* the second of two */
	uint64_t hash; /* of the first */
	struct run run;
} jobs[RUN_RESULTS];

static struct run_result *results;

/* As cmocka does it: ./check counts such lines. */
static void print_verdict(const struct run *run, bool passed)
{
	if (!asked.verdicts)
		return;
	printf(passed ? "[       OK ] " : "[  FAILED  ] ");
	if (run->world)
		printf("%s\n", run->world->name);
	else
		printf("seed %llu\n", (unsigned long long)run->seed);
}

static void run_failed(const struct run *run, const struct run_result *result)
{
	total.failed++;
	print_verdict(run, false);
	printf("FAIL %s: %s\n  repeat with: ", result->oracle, result->text);
	run_print_command(run);
}

/* True: the same run once more. */
static bool job_ended(struct job *job, struct run_result *result, int status)
{
	job->child = 0;
	total.cpu += result->cpu;
	if (result->cpu >= total.longest) {
		total.longest = result->cpu;
		total.slowest = job->run;
	}
	if (!run_ended(&job->run, result, status)) {
		run_failed(&job->run, result);
		return false;
	}
	if (asked.twice && !job->again) {
		job->hash = result->hash;
		return true;
	}
	if (job->again && job->hash != result->hash) {
		snprintf(result->oracle, sizeof(result->oracle), "twice");
		snprintf(result->text, sizeof(result->text),
			 "two runs of it differ: %016llx and %016llx",
			 (unsigned long long)job->hash, (unsigned long long)result->hash);
		run_failed(&job->run, result);
		return false;
	}
	total.passed++;
	total.batches += result->batches;
	print_verdict(&job->run, true);
	return false;
}

/* Wait for a process that ended. */
static void jobs_wait(void)
{
	int status;
	pid_t child = wait(&status);

	for (int i = 0; child > 0 && i < asked.jobs; i++) {
		struct job *job = &jobs[i];

		if (job->child != child)
			continue;
		if (job_ended(job, &results[i], status)) {
			job->again = true;
			job->child = run_start(&job->run, &results[i]);
		}
		return;
	}
}

static int jobs_running(void)
{
	int running = 0;

	for (int i = 0; i < asked.jobs; i++)
		running += jobs[i].child != 0;
	return running;
}

static void jobs_start(const struct run *run)
{
	int at = 0;

	while (jobs_running() == asked.jobs)
		jobs_wait();
	while (jobs[at].child)
		at++;
	jobs[at] = (struct job){ .run = *run };
	jobs[at].run.quiet = true;
	jobs[at].child = run_start(&jobs[at].run, &results[at]);
}

static int64_t monotonic(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SIM_SEC + now.tv_nsec;
}

static int jobs_end(int64_t begun)
{
	while (jobs_running())
		jobs_wait();
	printf("sim: %llu runs passed, %llu failed, %llu batches, %.1f s, %.1f runs a second of "
	       "CPU\n",
	       (unsigned long long)total.passed, (unsigned long long)total.failed,
	       (unsigned long long)total.batches, (double)(monotonic() - begun) / 1e9,
	       total.cpu > 0 ? (double)(total.passed + total.failed) / total.cpu : 0.0);
	if (total.passed + total.failed) {
		printf("  the slowest took %.1f s of CPU: ", total.longest);
		run_print_command(&total.slowest);
	}
	return total.failed != 0;
}

static int run_seeds(void)
{
	int64_t begun = monotonic();

	for (uint64_t i = 0; i < asked.count; i++) {
		asked.run.seed = asked.first + i;
		jobs_start(&asked.run);
		if (total.failed && asked.stop)
			break;
	}
	return jobs_end(begun);
}

static int run_for(void)
{
	int64_t begun = monotonic();

	asked.run.seed = asked.first ? asked.first : (uint64_t)time(NULL) % 100000000 * 10000;
	printf("sim: fresh seeds from %llu\n", (unsigned long long)asked.run.seed);
	while (monotonic() - begun < asked.seconds * SIM_SEC) {
		jobs_start(&asked.run);
		asked.run.seed++;
	}
	return jobs_end(begun);
}

/* ---- kept seeds ------------------------------------------------------------------------------ */

/* "SEED [--long] [NAME=VALUE]... # why". False: the line is wrong. */
static bool kept_line(char *line, struct run *run)
{
	char *rest = line, *word, *end;

	line[strcspn(line, "#")] = '\0';
	word = strtok_r(NULL, " \t", &rest);
	if (!word)
		return true;
	run->seed = strtoull(word, &end, 10);
	if (*end)
		return false;
	while ((word = strtok_r(NULL, " \t", &rest)))
		if (strcmp(word, "--long") == 0)
			run->is_long = true;
		else if (strchr(word, '=') && run->set_count < RUN_SETS)
			run->sets[run->set_count++] = word;
		else
			return false;
	jobs_start(run);
	return true;
}

static int run_kept(void)
{
	int64_t begun = monotonic();
	static char text[1 << 16]; /* not allocated: see run_results() */
	int file = open(asked.kept, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
	char *rest = text, *line;

	if (length < 0) {
		perror(asked.kept);
		return 66;
	}
	close(file);
	while ((line = strsep(&rest, "\n"))) {
		struct run run = asked.run;

		if (!kept_line(line, &run)) {
			fprintf(stderr, "%s: a wrong line: %s\n", asked.kept, line);
			return 65;
		}
	}
	return jobs_end(begun);
}

static int run_every_world(void)
{
	int64_t begun = monotonic();

	for (int i = 0; (asked.run.world = worlds_at(i)); i++)
		jobs_start(&asked.run);
	return jobs_end(begun);
}

/* ---- one run --------------------------------------------------------------------------------- */

static int run_one(void)
{
	struct run_result *result = results;
	bool good;

	if (asked.shrink)
		return run_shrink(&asked.run);
	good = run_once(&asked.run, &result[0]);
	if (good && asked.twice) {
		good = run_once(&asked.run, &result[1]) && result[0].hash == result[1].hash;
		printf("%s\n", good ? "twice the same" : "FAIL twice: two runs of it differ");
	}
	if (good)
		return 0;
	printf("FAIL seed %llu %s: %s\n  repeat with: ", (unsigned long long)asked.run.seed,
	       result->oracle, result->text);
	run_print_command(&asked.run);
	return 1;
}

/* ---- the command line ------------------------------------------------------------------------ */

static _Noreturn void wrong(const char *why)
{
	fprintf(stderr, "sim: %s. Try: sim --help\n", why);
	exit(64);
}

static const char *argument(char ***at)
{
	if (!*++*at)
		wrong("an option lacks its argument");
	return **at;
}

static bool parse_flag(const char *word)
{
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {
		{ "--long", &asked.run.is_long },
		{ "--trace", &asked.run.trace },
		{ "--stop-spinning", &asked.run.stop_spinning },
		{ "--twice", &asked.twice },
		{ "--shrink", &asked.shrink },
		{ "--stop", &asked.stop },
		{ "--every-world", &asked.every_world },
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		if (strcmp(word, flags[i].name) == 0)
			return *flags[i].flag = true;
	return false;
}

static void parse_run(char ***at)
{
	const char *word = **at;

	if (strcmp(word, "--until") == 0) {
		asked.run.until = (int64_t)(atof(argument(at)) * 1e9);
	} else if (strcmp(word, "--stop-at") == 0) {
		asked.run.stop_at = (int64_t)(atof(argument(at)) * 1e9);
	} else if (strncmp(word, "--set", 5) == 0) {
		const char *set = word[5] == '=' ? word + 6 : argument(at);

		if (asked.run.set_count == RUN_SETS || !swarm_set(set))
			wrong("no such option of a world");
		asked.run.sets[asked.run.set_count++] = set;
	} else if (strcmp(word, "--world") == 0) {
		asked.run.world = worlds_find(argument(at));
		if (!asked.run.world)
			wrong("no such world; --worlds lists them");
	} else if (word[0] >= '0' && word[0] <= '9') {
		asked.run.seed = strtoull(word, NULL, 10);
	} else {
		wrong("an argument that it does not know");
	}
}

static void parse(char **at)
{
	for (; *at; at++) {
		if (strcmp(*at, "--seeds") == 0) {
			asked.many = true;
			asked.first = strtoull(argument(&at), NULL, 10);
			asked.count = strtoull(argument(&at), NULL, 10);
		} else if (strcmp(*at, "--for") == 0) {
			asked.seconds = atoi(argument(&at));
		} else if (strcmp(*at, "--from") == 0) {
			asked.first = strtoull(argument(&at), NULL, 10);
		} else if (strcmp(*at, "--kept") == 0) {
			asked.kept = argument(&at);
		} else if (strcmp(*at, "--jobs") == 0) {
			asked.jobs = atoi(argument(&at));
		} else if (strcmp(*at, "--options") == 0) {
			asked.options = true;
		} else if (!parse_flag(*at)) {
			parse_run(&at);
		}
	}
	if (asked.jobs < 1)
		asked.jobs = (int)sysconf(_SC_NPROCESSORS_ONLN);
	asked.jobs = asked.jobs < RUN_RESULTS ? asked.jobs : RUN_RESULTS;
}

/* The address sanitizer notes the callers of each allocation, in memory between the world's own.
 * Let it note so few that a run needs as much of that wherever it is started from: its addresses
 * are the same then. */
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
	return "malloc_context_size=4";
}

/* Have the same addresses each time: those of regions are in frames. */
static void fix_addresses(char **argv)
{
	int now = personality(0xffffffff);

	if (now & ADDR_NO_RANDOMIZE)
		return;
	if (personality((unsigned long)now | ADDR_NO_RANDOMIZE) >= 0 &&
	    personality(0xffffffff) & ADDR_NO_RANDOMIZE)
		execv("/proc/self/exe", argv);
	fprintf(stderr, "sim: addresses are random here, so a seed may have several histories\n");
}

static void forget_environment(void)
{
	extern char **environ;

	for (char **at = environ; *at;)
		if (strncmp(*at, "WHERRY_", 7) == 0) {
			char name[128];

			snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
			unsetenv(name);
			at = environ;
		} else {
			at++;
		}
}

int main(int argc, char **argv)
{
	static char buffer[1 << 16];

	fix_addresses(argv);
	forget_environment();
	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	if (argc < 2 || strcmp(argv[1], "--help") == 0) {
		fputs(usage, argc < 2 ? stderr : stdout);
		return argc < 2 ? 64 : 0;
	}
	if (strcmp(argv[1], "--worlds") == 0) {
		worlds_list();
		return 0;
	}
	parse(argv + 1);
	results = run_results();
	if (asked.options) {
		swarm_choose(asked.run.seed, asked.run.is_long);
		swarm_agree();
		swarm_print(true);
		return 0;
	}
	asked.verdicts = asked.kept || asked.every_world;
	if (asked.kept)
		return run_kept();
	if (asked.every_world)
		return run_every_world();
	if (asked.seconds)
		return run_for();
	return asked.many ? run_seeds() : run_one();
}
