/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what this process's container shares with others of the machine. Each fix is the line
 * of a pod's specification, or of docker. docs/containers.md has whole ones. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "net/meet.h"

#define SHM_LEAST (INT64_C(1) << 30)

/* ---- namespaces ------------------------------------------------------------------------------ */

/* The inode numbers of the machine's first namespaces, which the kernel fixes; 0: it does not. */
static const struct {
	const char *name, *first;
} namespaces[] = {
	{ "net", NULL }, { "pid", "pid:[4026531836]" }, { "ipc", "ipc:[4026531839]" },
	{ "mnt", NULL }, { "uts", "uts:[4026531838]" }, { "user", "user:[4026531837]" },
};

static void list_add(char *list, size_t size, const char *name)
{
	size_t used = strlen(list);

	snprintf(list + used, size - used, " %s", name);
}

/* What is shared with PID 1. In a container PID 1 is the container's own, so also: is the namespace
 * the machine's first one? */
static void container_namespaces(const struct doctor *doctor, struct finding *finding)
{
	char shared[64] = "", own[64] = "", inside[64] = "", path[64], mine[64], first[64];

	for (size_t i = 0; i < sizeof(namespaces) / sizeof(*namespaces); i++) {
		const char *name = namespaces[i].name;
		int error;

		snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
		error = wh_tree_link(&doctor->tree, path, mine, sizeof(mine));
		if (!error && namespaces[i].first && strcmp(mine, namespaces[i].first) != 0)
			list_add(inside, sizeof(inside), name);
		if (!error) {
			snprintf(path, sizeof(path), "/proc/1/ns/%s", name);
			error = wh_tree_link(&doctor->tree, path, first, sizeof(first));
		}
		/* One is enough: it is the same for the others, which may still say something. */
		if (error && finding->verdict != UNKNOWN) {
			finding_add(finding, UNKNOWN, "%s: %s", path, strerror(-error));
			finding_advise(finding, "run it as root, with CAP_SYS_PTRACE");
		} else if (!error && strcmp(mine, first) != 0) {
			list_add(own, sizeof(own), name);
		} else if (!error) {
			list_add(shared, sizeof(shared), name);
		}
	}
	if (finding->verdict != UNKNOWN)
		finding_add(finding, *own || *inside ? INFO : PASS, "shared with PID 1:%s",
			    *shared ? shared : " none");
	if (*own)
		finding_add(finding, INFO, "others than PID 1's:%s", own);
	if (*inside)
		finding_add(finding, INFO, "a container, with its own:%s", inside);
	else if (finding->verdict == UNKNOWN)
		finding_add(finding, UNKNOWN, "PID, IPC, UTS and user namespace are the machine's");
}

/* Is /proc that of this PID namespace? NSpid has a number for each namespace from that of /proc
 * down to the process's. */
static bool proc_is_outer(const struct doctor *doctor, int *error)
{
	char text[8192], *at;

	*error = wh_tree_read(&doctor->tree, "/proc/self/status", text, sizeof(text));
	at = *error < 0 ? NULL : strstr(text, "NSpid:");
	if (!at)
		return false;
	at += strlen("NSpid:");
	strtol(at, &at, 10);
	at += strspn(at, "\t ");
	return *at >= '0' && *at <= '9';
}

/* ---- the folder where engines meet ------------------------------------------------------------
 */

void doctor_folders(const struct doctor *doctor, struct wh_meet_folders *out)
{
	char setting[WH_CONFIG_TEXT], runtime[WH_CONFIG_TEXT];

	doctor_environment(doctor, "WHERRY_MEET", setting, sizeof(setting));
	if (!*setting && !wh_tree_is_live(&doctor->tree)) {
		/* The defaults of the machine that was recorded. */
		doctor_environment(doctor, "XDG_RUNTIME_DIR", runtime, sizeof(runtime));
		snprintf(setting, sizeof(setting), "%.200s%s/run/wherry,/dev/shm", runtime,
			 *runtime ? "," : "");
	}
	wh_meet_folders(setting, out);
}

static void container_meet(const struct doctor *doctor, struct finding *finding)
{
	char text[256], path[2 * WH_CONFIG_TEXT];
	struct wh_meet_folders folders;
	bool writable = false;

	doctor_folders(doctor, &folders);
	wh_meet_text(&folders, text, sizeof(text));
	if (!folders.count) {
		finding_add(finding, WARN, "the setting meet is off");
		finding_advise(finding, "unset WHERRY_MEET: engines of other containers of this "
					"machine are reached by TCP only");
		return;
	}
	for (unsigned i = 0; i < folders.count; i++) {
		int error = wh_tree_exists(&doctor->tree, folders.path[i]);

		if (error && error != -ENOENT) {
			finding_add(finding, UNKNOWN, "%.80s: %s", folders.path[i],
				    strerror(-error));
			continue;
		}
		snprintf(path, sizeof(path), "%s%s", doctor->tree.root, folders.path[i]);
		if (error || access(path, W_OK | X_OK))
			continue;
		writable = true;
		finding_add(finding, PASS, "%.80s is there and writable", folders.path[i]);
	}
	if (!writable && finding->verdict != UNKNOWN)
		finding_add(finding, WARN,
			    "none of %s is there and writable: engines of other "
			    "containers of this machine are reached by TCP only",
			    text);
	finding_advise(finding,
		       "a pod: volumes: [{name: wherry, hostPath: {path: /run/wherry, type: "
		       "DirectoryOrCreate}}] and volumeMounts: [{name: wherry, mountPath: "
		       "/run/wherry}]; docker run -v wherry:/run/wherry");
	if (finding->verdict == PASS)
		*finding->fix = 0;
}

/* ---- /dev/shm -------------------------------------------------------------------------------- */

/* "64k" as the options of a mount have it. */
static int64_t mount_bytes(const char *text)
{
	char *end;
	int64_t value = strtoll(text, &end, 10);

	return *end == 'k' ? value << 10 :
	       *end == 'm' ? value << 20 :
	       *end == 'g' ? value << 30 :
			     value;
}

static void container_shm(const struct doctor *doctor, struct finding *finding)
{
	char text[16384], *line, *size;
	int length = wh_tree_read(&doctor->tree, "/proc/self/mounts", text, sizeof(text));
	int64_t bytes;

	line = length < 0 ? NULL : strstr(text, " /dev/shm ");
	if (!line) {
		finding_add(finding, UNKNOWN, "/proc/self/mounts: %s",
			    length < 0 ? strerror(-length) : "/dev/shm is not a mount");
		return;
	}
	line[strcspn(line, "\n")] = 0;
	size = strstr(line, "size=");
	if (size)
		size[strcspn(size, ", ")] = 0;
	bytes = size ? mount_bytes(size + strlen("size=")) : 0;
	if (!size || bytes >= SHM_LEAST) {
		finding_add(finding, PASS, "/dev/shm: %s",
			    size ? size : "half of the machine's memory");
		return;
	}
	finding_add(finding, INFO,
		    "/dev/shm has %lld MiB; Wherry's memory is not in it, but that of other "
		    "libraries may be (NCCL, PyTorch)",
		    (long long)(bytes >> 20));
	finding_advise(finding,
		       "a pod: volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: "
		       "8Gi}}] and volumeMounts: [{name: shm, mountPath: /dev/shm}]; docker "
		       "run --shm-size 8g");
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* Is the word in a list with commas between? */
static bool list_has(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (;; list++) {
		size_t span = strcspn(list, ",");

		if (span == length && !memcmp(list, word, length))
			return true;
		list += span;
		if (!*list)
			return false;
	}
}

static void container_gpu(const struct doctor *doctor, struct finding *finding)
{
	char capabilities[128];
	int error;
	bool outer = proc_is_outer(doctor, &error);

	if (error < 0) {
		finding_add(finding, UNKNOWN, "/proc/self/status: %s", strerror(-error));
		return;
	}
	finding_add(finding, outer ? FAIL : PASS, "/proc is that of %s PID namespace%s",
		    outer ? "another" : "this", outer ? ": cuInit fails (304)" : "");
	if (outer)
		finding_advise(finding,
			       "mount -t proc proc /proc in the container, as runtimes do; "
			       "unshare --pid --fork --mount-proc");
	if (!doctor_environment(doctor, "NVIDIA_DRIVER_CAPABILITIES", capabilities,
				sizeof(capabilities)) ||
	    !*capabilities)
		return;
	if (list_has(capabilities, "all") ||
	    (list_has(capabilities, "compute") && list_has(capabilities, "utility"))) {
		finding_add(finding, PASS, "NVIDIA_DRIVER_CAPABILITIES is %.64s", capabilities);
		return;
	}
	finding_add(finding, WARN,
		    "NVIDIA_DRIVER_CAPABILITIES is %.64s: without compute there is no libcuda, "
		    "without utility no NVML",
		    capabilities);
	finding_advise(finding,
		       "a container of a pod: env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: "
		       "\"compute,utility\"}]; docker run -e "
		       "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
}

const struct check doctor_container_checks[] = {
	{ .id = "container.ns",
	  .title = "namespaces that are shared with PID 1",
	  .machine = container_namespaces },
	{ .id = "container.meet",
	  .title = "a folder where engines of other containers are met",
	  .machine = container_meet },
	{ .id = "container.shm", .title = "size of /dev/shm", .machine = container_shm },
	{ .id = "container.gpu",
	  .title = "what the GPU driver needs in a container",
	  .needs = NEEDS_SYSFS,
	  .subjects = GPUS,
	  .machine = container_gpu },
	{ 0 },
};
