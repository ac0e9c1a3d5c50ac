/* SPDX-License-Identifier: Apache-2.0 */
/* The environment's settings, what every call does first, and faults that tests ask for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define FAULTS 32

struct fault {
	char name[64]; /* "": free */
	unsigned nth; /* the nth call from now fails; 0: every call */
	int error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* faults, calls; the innermost */
static struct fault faults[FAULTS];
static _Atomic unsigned fault_count;
static struct fake_call *calls;
static struct fake_settings settings;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static _Atomic unsigned delay;
static _Atomic pid_t process;

_Thread_local bool fake_in_callback;
_Thread_local int fake_capture_mode;

/* ---- the environment ------------------------------------------------------------------------- */

static unsigned long long setting_number(const char *name, unsigned long long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Parse NAME:NTH:ERROR,... */
static void faults_from(const char *text)
{
	while (text && *text) {
		size_t length = strcspn(text, ":");
		char name[64], *end;
		unsigned nth;
		int error;

		if (length >= sizeof(name) || text[length] != ':')
			return;
		memcpy(name, text, length);
		name[length] = 0;
		nth = (unsigned)strtoul(text + length + 1, &end, 0);
		if (*end != ':')
			return;
		error = (int)strtol(end + 1, &end, 0);
		fake_cuda_fail(name, nth, error);
		text = *end == ',' ? end + 1 : NULL;
	}
}

static void read_settings(void)
{
	settings.devices = (unsigned)setting_number("FAKE_CUDA_DEVICES", 2);
	if (settings.devices > FAKE_DEVICES)
		settings.devices = FAKE_DEVICES;
	settings.memory = setting_number("FAKE_CUDA_MEMORY", 16ULL << 30);
	settings.delay = (unsigned)setting_number("FAKE_CUDA_DELAY_US", 0);
	settings.start = (unsigned)setting_number("FAKE_CUDA_START", 0);
	settings.driver = (int)setting_number("FAKE_CUDA_DRIVER", 13000);
	settings.reuse = setting_number("FAKE_CUDA_REUSE", 0) != 0;
	settings.share = setting_number("FAKE_CUDA_SHARE", 0) != 0;
	settings.peer = setting_number("FAKE_CUDA_PEER", 1) != 0;
	settings.attributes = getenv("FAKE_CUDA_ATTRIBUTES");
	settings.visible = getenv("CUDA_VISIBLE_DEVICES");
	settings.bar = getenv("FAKE_CUDA_BAR");
	settings.world = getenv("FAKE_CUDA_WORLD");
	settings.fabric = settings.world ? (unsigned)setting_number("FAKE_CUDA_FABRIC", 0) : 0;
	delay = settings.delay;
	process = getpid();
	faults_from(getenv("FAKE_CUDA_FAIL"));
}

const struct fake_settings *fake_settings(void)
{
	pthread_once(&settings_once, read_settings);
	return &settings;
}

static _Atomic unsigned slow_kernel, slow_copy, slow_noise, slow_locking, slow_random = 1;

void fake_pause(unsigned microseconds)
{
	struct timespec t = { microseconds / 1000000, microseconds % 1000000 * 1000L };

	while (microseconds && nanosleep(&t, &t) && errno == EINTR)
		;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

void fake_take_time(bool kernel)
{
	unsigned noise = slow_noise, random = slow_random * 1103515245u + 12345u;

	slow_random = random;
	fake_pause((kernel ? slow_kernel : slow_copy) +
		   (noise && random >> 16 & 1 ? (random >> 17) % noise : 0));
}

void fake_take_locking(void)
{
	fake_pause(slow_locking);
}

void fake_take_delay(void)
{
	const unsigned asked = delay;
	int64_t end = now_us() + asked, left;

	/* By the clock: on a busy machine each pause is many times as long as asked. */
	while (asked && delay == asked && (left = end - now_us()) > 0)
		fake_pause(left < 1000 ? (unsigned)left : 1000);
}

/* Parse DEVICE:ERROR:AFTER. */
void fake_lose_from_environment(void)
{
	const char *text = getenv("FAKE_CUDA_LOSE");
	char *end;
	int device, error = FAKE_UNKNOWN;
	unsigned after = 0;

	if (!text || !*text)
		return;
	device = (int)strtol(text, &end, 0);
	if (*end == ':')
		error = (int)strtol(end + 1, &end, 0);
	if (*end == ':')
		after = (unsigned)strtoul(end + 1, &end, 0);
	fake_cuda_lose(device, error, after);
}

/* ---- entering a call ------------------------------------------------------------------------- */

/* Is the name one of `those`, which are separated by '|'? */
static bool fault_names(const char *those, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = those; (at = strstr(at, name)) != NULL; at += length)
		if ((at == those || at[-1] == '|') && (!at[length] || at[length] == '|'))
			return true;
	return false;
}

static int fault_strike(const char *name)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	for (struct fault *f = faults; f < faults + FAULTS && !error; f++) {
		if (!fault_names(f->name, name))
			continue;
		if (f->nth > 1) {
			f->nth--;
			continue;
		}
		error = f->error;
		if (f->nth == 1) {
			f->name[0] = 0;
			fault_count--;
		}
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static void call_count(struct fake_call *call, const char *name)
{
	if (atomic_fetch_add(&call->count, 1) > 0)
		return;
	pthread_mutex_lock(&lock);
	call->name = name;
	call->next = calls;
	calls = call;
	pthread_mutex_unlock(&lock);
}

int fake_enter_uninitialised(struct fake_call *call, const char *name)
{
	fake_settings();
	if (getpid() != process) { /* after fork(): another thread may have held a lock */
		if (fake_initialised())
			return FAKE_NOT_INITIALIZED;
		process = getpid();
	}
	call_count(call, name);
	return fault_count ? fault_strike(name) : FAKE_OK;
}

/* ---- a capture by another thread ------------------------------------------------------------- */

enum { RELAXED = 2 };

static _Atomic bool captured_elsewhere;
static _Atomic unsigned refused;

/* Calls that neither wait nor allocate, by the start of their name. */
static bool leaves_captures_alone(const char *name)
{
	static const char *const harmless[] = {
		"cuCtxGet",    "cuCtxPop",      "cuCtxPush",    "cuCtxSet",      "cuDevice",
		"cuDriver",    "cuEventRecord", "cuFuncGet",    "cuGet",         "cuInit",
		"cuLaunch",    "cuMemGet",      "cuMemHostGet", "cuModuleGet",   "cuPointerGet",
		"cuStreamGet", "cuStreamIs",    "cuStreamWait", "cuStreamWrite", "cuThreadExchange",
	};

	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
		if (!strncmp(name, harmless[i], strlen(harmless[i])))
			return true;
	return strstr(name, "Async"); /* copies and fills */
}

FAKE_API unsigned fake_cuda_capture_elsewhere(int on)
{
	unsigned count = refused;

	if (on)
		refused = 0;
	captured_elsewhere = on;
	return on ? 0 : count;
}

int fake_enter(struct fake_call *call, const char *name)
{
	int error = fake_enter_uninitialised(call, name);

	if (!error && captured_elsewhere && fake_capture_mode != RELAXED &&
	    !leaves_captures_alone(name)) {
		refused++;
		error = FAKE_CAPTURE_UNSUPPORTED;
	}
	if (error)
		return error;
	if (!fake_initialised())
		return FAKE_NOT_INITIALIZED;
	return fake_in_callback ? FAKE_NOT_PERMITTED : FAKE_OK;
}

/* ---- controls for tests ---------------------------------------------------------------------- */

FAKE_API int fake_cuda_fail(const char *function, unsigned nth, int error)
{
	int result = FAKE_OUT_OF_MEMORY;

	if (!function || strlen(function) >= sizeof(faults[0].name))
		return FAKE_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (struct fault *f = faults; f < faults + FAULTS; f++) {
		if (!error && strcmp(f->name, function) == 0) {
			f->name[0] = 0;
			fault_count--;
		} else if (error && !f->name[0]) {
			strcpy(f->name, function);
			f->nth = nth;
			f->error = error;
			fault_count++;
			result = FAKE_OK;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return error ? result : FAKE_OK;
}

FAKE_API void fake_cuda_lose(int device, int error, unsigned after)
{
	struct fake_device *d = fake_device(device);

	if (!d)
		return;
	d->lose_error = error;
	if (after)
		d->lose_after = after;
	else
		d->lost = error;
}

FAKE_API void fake_cuda_heal(void)
{
	captured_elsewhere = false;
	pthread_mutex_lock(&lock);
	memset(faults, 0, sizeof(faults));
	fault_count = 0;
	pthread_mutex_unlock(&lock);
	delay = fake_settings()->delay;
	slow_kernel = slow_copy = slow_noise = slow_locking = 0;
	fake_attributes_forget();
	for (unsigned i = 0; i < fake_device_count(); i++) {
		struct fake_device *d = fake_device((int)i);

		d->lose_after = -1;
		d->lost = 0;
		d->memory = fake_settings()->memory;
	}
	pthread_mutex_lock(&fake_lock);
	for (struct wh_list *l = fake_contexts.next; l != &fake_contexts; l = l->next)
		wh_container(l, struct fake_context, link)->error = 0;
	pthread_mutex_unlock(&fake_lock);
}

FAKE_API void fake_cuda_delay(unsigned microseconds)
{
	fake_settings();
	delay = microseconds;
}

FAKE_API void fake_cuda_slow(unsigned kernel, unsigned copy, unsigned noise)
{
	slow_kernel = kernel;
	slow_copy = copy;
	slow_noise = noise;
}

FAKE_API void fake_cuda_slow_locking(unsigned microseconds)
{
	slow_locking = microseconds;
}

FAKE_API void fake_cuda_memory(int device, size_t bytes)
{
	struct fake_device *d = fake_device(device);

	if (d)
		d->memory = bytes;
}

FAKE_API uint64_t fake_cuda_calls(const char *function)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&lock);
	for (const struct fake_call *call = calls; call; call = call->next)
		if (strcmp(call->name, function) == 0)
			sum += call->count;
	pthread_mutex_unlock(&lock);
	return sum;
}
