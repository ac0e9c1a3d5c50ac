/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wherry top takes of the CPU on this machine's GPUs, and what each of its questions to NVML
 * takes. top [--bench] [--seconds N] [--interval S] [WHERRY]: looks on while WHERRY (by default the
 * one beside this program) runs `top --csv` for N seconds, after it has settled; --bench prints
 * JSON for bench/results. 77 if there is no GPU.
 */
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "platform/nvml.h"

#define MOST 0.02 /* of a core, at one sample a second */
#define ROUNDS 20

static struct wh_nvml *nvml;
static double interval = 1, duration = 20;
static const char *wherry;

/* ---- time ------------------------------------------------------------------------------------ */

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pause_for(double length)
{
	struct timespec t = { .tv_sec = (time_t)length };

	t.tv_nsec = (long)((length - (double)t.tv_sec) * 1e9);
	while (nanosleep(&t, &t))
		;
}

struct used {
	double at, user, system;
};

/* What a process has used of the CPU, all of its threads. False: it has ended. */
static bool used_by(pid_t pid, struct used *out)
{
	char path[64], text[1024], *after;
	unsigned long user, system;
	size_t length;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	length = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[length] = '\0';
	after = strrchr(text, ')');
	if (!after || after[1] != ' ' || after[2] == 'Z' ||
	    sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		   &system) != 2)
		return false;
	out->at = seconds(CLOCK_MONOTONIC);
	out->user = (double)user / (double)sysconf(_SC_CLK_TCK);
	out->system = (double)system / (double)sysconf(_SC_CLK_TCK);
	return true;
}

/* ---- wherry top ------------------------------------------------------------------------------ */

static struct {
	struct used start, steady; /* until it has settled; from there on */
	double share;
} top;

static pid_t start_top(void)
{
	char between[32];
	pid_t pid;

	snprintf(between, sizeof(between), "%g", interval);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		execl(wherry, wherry, "top", "--csv", "--observe", "off", "--interval", between,
		      "--count", "1000000", (char *)NULL);
		perror(wherry);
		_exit(127);
	}
	return pid;
}

/* It settles within eleven samples: then it knows whether the driver is slow. */
static void watch_top(void)
{
	struct used before, after;
	pid_t pid = start_top();
	int status;

	if (!CHECK(pid > 0))
		return;
	pause_for(fmax(12 * interval, 2));
	if (CHECK(used_by(pid, &before))) {
		pause_for(duration);
		if (CHECK(used_by(pid, &after))) {
			top.start = before;
			top.steady.at = after.at - before.at;
			top.steady.user = after.user - before.user;
			top.steady.system = after.system - before.system;
			top.share = (top.steady.user + top.steady.system) / top.steady.at *
				    fmin(interval, 1);
		}
	}
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid);
	/* Else it had ended by itself. */
	CHECK(WIFSIGNALED(status));
	CHECK(top.share < MOST);
}

/* ---- calls ----------------------------------------------------------------------------------- */

enum which {
	UTILISATION,
	POWER,
	LINKS,
	MEMORY,
	CLOCK,
	PCIE,
	PROCESSES,
	HEAT,
	REASONS,
	BAR1,
	ECC,
	REPLAYS,
	POWER_LIMIT,
	CLOCK_MOST,
	CALLS,
};

static struct call {
	const char *name;
	unsigned answered; /* of all that were asked */
	double wall, cpu; /* us for each */
} calls[CALLS] = {
	[UTILISATION] = { .name = "nvmlDeviceGetUtilizationRates" },
	[POWER] = { .name = "nvmlDeviceGetPowerUsage" },
	[LINKS] = { .name = "nvmlDeviceGetFieldValues (138, 139)" },
	[MEMORY] = { .name = "nvmlDeviceGetMemoryInfo" },
	[CLOCK] = { .name = "nvmlDeviceGetClockInfo" },
	[PCIE] = { .name = "nvmlDeviceGetPcieThroughput" },
	[PROCESSES] = { .name = "nvmlDeviceGetComputeRunningProcesses" },
	[HEAT] = { .name = "nvmlDeviceGetTemperature" },
	[REASONS] = { .name = "nvmlDeviceGetCurrentClocksEventReasons" },
	[BAR1] = { .name = "nvmlDeviceGetBAR1MemoryInfo" },
	[ECC] = { .name = "nvmlDeviceGetTotalEccErrors" },
	[REPLAYS] = { .name = "nvmlDeviceGetPcieReplayCounter" },
	[POWER_LIMIT] = { .name = "nvmlDeviceGetEnforcedPowerLimit" },
	[CLOCK_MOST] = { .name = "nvmlDeviceGetMaxClockInfo" },
};

static int ask(enum which which, unsigned device)
{
	struct wh_nvml_field fields[] = { { .field = WH_NVML_FIELD_LINK_SENT, .scope = UINT32_MAX },
					  { .field = WH_NVML_FIELD_LINK_RECEIVED,
					    .scope = UINT32_MAX } };
	struct wh_nvml_process processes[64];
	struct wh_nvml_memory memory;
	unsigned count = 64;
	uint32_t one, two;
	uint64_t large;

	switch (which) {
	case UTILISATION:
		return wh_nvml_utilisation(nvml, device, &one, &two);
	case POWER:
		return wh_nvml_number(nvml, WH_NVML_POWER, device, &one);
	case LINKS:
		wh_nvml_fields(nvml, device, fields, 2);
		return fields[0].error;
	case MEMORY:
		return wh_nvml_memory(nvml, device, &memory);
	case CLOCK:
		return wh_nvml_indexed(nvml, WH_NVML_CLOCK, device, 1, &one);
	case PCIE:
		return wh_nvml_indexed(nvml, WH_NVML_PCIE_RATE, device, 0, &one);
	case PROCESSES:
		return wh_nvml_processes(nvml, device, processes, &count);
	case HEAT:
		return wh_nvml_indexed(nvml, WH_NVML_TEMPERATURE, device, 0, &one);
	case REASONS:
		return wh_nvml_reasons(nvml, device, &large);
	case BAR1:
		return wh_nvml_bar1(nvml, device, &memory);
	case ECC:
		return wh_nvml_ecc(nvml, device, true, &large);
	case REPLAYS:
		return wh_nvml_number(nvml, WH_NVML_PCIE_REPLAYS, device, &one);
	case POWER_LIMIT:
		return wh_nvml_number(nvml, WH_NVML_POWER_LIMIT, device, &one);
	default:
		return wh_nvml_indexed(nvml, WH_NVML_CLOCK_MOST, device, 1, &one);
	}
}

static void time_calls(void)
{
	unsigned asked = ROUNDS * wh_nvml_count(nvml), answered = 0;

	for (unsigned which = 0; which < CALLS; which++) {
		double wall, cpu;

		/* The first time the library may have something to set up. */
		for (unsigned i = 0; i < wh_nvml_count(nvml); i++)
			ask(which, i);
		wall = seconds(CLOCK_MONOTONIC);
		cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
		for (unsigned i = 0; i < asked; i++)
			calls[which].answered += ask(which, i % wh_nvml_count(nvml)) == 0;
		calls[which].wall = (seconds(CLOCK_MONOTONIC) - wall) / asked * 1e6;
		calls[which].cpu = (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) / asked * 1e6;
		answered += calls[which].answered;
	}
	CHECK(answered > 0);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_json(void)
{
	char driver[WH_NVML_TEXT] = "", name[WH_NVML_TEXT] = "";
	unsigned asked = ROUNDS * wh_nvml_count(nvml);

	wh_nvml_system_text(nvml, WH_NVML_DRIVER_VERSION, driver);
	wh_nvml_text(nvml, WH_NVML_NAME, 0, name);
	printf("{\"schema\": 1, \"what\": \"tests/gpu/top: CPU time of wherry top --csv, and of "
	       "its "
	       "NVML calls\", \"gpu\": \"%s\", \"gpus\": %u, \"nvidia_driver\": \"%s\", "
	       "\"interval_seconds\": %g,\n\"top\": {\"start_cpu_seconds\": %.2f, \"seconds\": "
	       "%.2f, "
	       "\"user_seconds\": %.2f, \"system_seconds\": %.2f, \"percent_of_a_core_at_1_hz\": "
	       "%.2f, \"percent_asked_for\": %g},\n\"calls\": [",
	       name, wh_nvml_count(nvml), driver, interval, top.start.user + top.start.system,
	       top.steady.at, top.steady.user, top.steady.system, top.share * 100, MOST * 100);
	for (unsigned i = 0; i < CALLS; i++)
		printf("%s\n  {\"function\": \"%s\", \"asked\": %u, \"answered\": %u, \"wall_us\": "
		       "%.1f, "
		       "\"cpu_us\": %.1f}",
		       i ? "," : "", calls[i].name, asked, calls[i].answered, calls[i].wall,
		       calls[i].cpu);
	printf("\n]}\n");
}

static void print_text(void)
{
	printf("%u GPUs: %.2f s of user and %.2f s of system time in %.1f s, %.2f %% of a core at "
	       "1 Hz\n",
	       wh_nvml_count(nvml), top.steady.user, top.steady.system, top.steady.at,
	       top.share * 100);
	for (unsigned i = 0; i < CALLS; i++)
		printf("%-40s %9.1f us, %7.1f us of the CPU%s\n", calls[i].name, calls[i].wall,
		       calls[i].cpu, calls[i].answered ? "" : ", no answer");
}

int main(int argc, char **argv)
{
	static char beside[4096 + 8];
	bool bench = false;
	int bad;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--bench"))
			bench = true;
		else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
			duration = strtod(argv[++i], NULL);
		else if (!strcmp(argv[i], "--interval") && i + 1 < argc)
			interval = strtod(argv[++i], NULL);
		else
			wherry = argv[i];
	}
	if (!(duration > 0 && duration < 3600) || !(interval >= 0.1 && interval <= 60)) {
		fprintf(stderr, "top: --seconds is up to an hour, --interval from 0.1 to 60\n");
		return 64;
	}
	if (!wherry && readlink("/proc/self/exe", beside, 4095) > 0) {
		strcat(dirname(beside), "/wherry");
		wherry = beside;
	}
	if (wh_nvml_open(NULL, &nvml)) {
		printf("skipped: %s\n", wh_error_text());
		return 77;
	}
	if (bench) { /* JSON alone on stdout */
		watch_top();
		time_calls();
		bad = gpu_failures != 0;
		print_json();
	} else {
		gpu_case("top: less than 2 % of a core at 1 Hz", watch_top);
		gpu_case("top: each call", time_calls);
		print_text();
		bad = gpu_close();
	}
	wh_nvml_close(nvml);
	return bad;
}
