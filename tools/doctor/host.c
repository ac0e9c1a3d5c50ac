/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the host: CPU windows, limits, huge pages, control groups, libraries. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"

#define CAP_IPC_LOCK 14
#define CAP_SYS_PTRACE 19
#define MEMLOCK_LEAST (UINT64_C(64) << 20)
#define CPUS_MOST 65535
#define MAPS_LEAST 65530 /* the kernel's default */

/* ---- windows --------------------------------------------------------------------------------- */

#define MISC 10 /* major number of all devices in /proc/misc */

/* The number of a driver: its major number in /proc/devices, its minor number in /proc/misc; -1:
 * not listed. */
static int device_number(const struct doctor *doctor, const char *file, const char *name)
{
	char text[8192], *next = text, *line;

	if (wh_tree_read(&doctor->tree, file, text, sizeof(text)) < 0)
		return -1;
	while ((line = strsep(&next, "\n"))) {
		char *end;
		long number = strtol(line, &end, 10);

		if (end > line && *end == ' ' && strcmp(end + 1, name) == 0)
			return (int)number;
	}
	return -1;
}

static void gdrdrv_node(const struct doctor *doctor, struct finding *finding)
{
	int major, minor = 0, node, error = wh_tree_device(&doctor->tree, "/dev/gdrdrv", &node);

	/* GDRCopy's module has its own major number, Wherry's is a miscellaneous device. */
	major = device_number(doctor, "/proc/devices", "gdrdrv");
	if (major < 0) {
		minor = device_number(doctor, "/proc/misc", "gdrdrv");
		major = minor < 0 ? -1 : MISC;
	}
	if (error == -ENOENT && major < 0) {
		finding_add(finding, INFO,
			    "the gdrdrv module is not loaded; Wherry opens windows without it");
	} else if (error == -ENOENT) {
		finding_add(finding, WARN,
			    "gdrdrv is loaded (major %d), but there is no /dev/gdrdrv", major);
		finding_advise(finding, "mknod -m 666 /dev/gdrdrv c %d %d", major, minor);
	} else if (error) {
		finding_add(finding, UNKNOWN, "/dev/gdrdrv: %s", strerror(-error));
	} else if (major < 0) {
		finding_add(finding, WARN, "/dev/gdrdrv exists, but no module gdrdrv");
		finding_advise(finding, "modprobe gdrdrv, or remove the file");
	} else if (node != major) {
		finding_add(finding, FAIL, "/dev/gdrdrv has major %d, the module %d", node, major);
		finding_advise(finding, "rm /dev/gdrdrv && mknod -m 666 /dev/gdrdrv c %d %d", major,
			       minor);
	} else {
		error = wh_tree_open(&doctor->tree, "/dev/gdrdrv", true);
		finding_add(finding, error ? WARN : PASS, "/dev/gdrdrv: %s",
			    error ? strerror(-error) : "opens");
		if (error)
			finding_advise(finding, "chmod 666 /dev/gdrdrv; add it to the container");
	}
}

/* Where no window can be opened: whether the files exist that each backend needs. */
static void window_files(const struct doctor *doctor, struct finding *finding)
{
	int module = wh_tree_open(&doctor->tree, "/dev/gdrdrv", true),
	    control = wh_tree_open(&doctor->tree, "/dev/nvidiactl", true);
	const char *mapping = !doctor->cuda.known || doctor->cuda.error ? "CUDA cannot be asked" :
			      doctor->cuda.version < 13030              ? "needs CUDA 13.3" :
									  NULL;

	finding_add(finding,
		    !module || !control || !mapping ? PASS :
		    !doctor->cuda.known             ? UNKNOWN :
						      WARN,
		    "gdrdrv: %s; the NVIDIA driver's own interface: %s; mmap of a dma-buf: %s",
		    module ? strerror(-module) : "yes", control ? strerror(-control) : "yes",
		    mapping ? mapping : "yes");
	if (finding->verdict == WARN)
		finding_advise(finding,
			       "give this process /dev/nvidiactl and /dev/nvidia*, or load gdrdrv");
}

static void window_backends(const struct doctor *doctor, struct finding *finding)
{
	struct window_facts facts = { 0 };
	bool opens = false;

	if (!wh_tree_is_live(&doctor->tree) || doctor->cuda.count)
		facts_windows(&doctor->tree, doctor->cuda.gpus[0].address, &facts);
	if (!facts.count) {
		window_files(doctor, finding);
		return;
	}
	for (int i = 0; i < facts.count; i++)
		opens |= !facts.backends[i].error;
	for (int i = 0; i < facts.count; i++)
		finding_add(finding, opens ? PASS : WARN, "%s: %s", facts.backends[i].name,
			    facts.backends[i].error ? facts.backends[i].why : "opens");
	if (!opens)
		finding_advise(finding,
			       "give this process /dev/nvidiactl and /dev/nvidia*, or load gdrdrv");
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Does this process have a capability? 1, 0, or -1: unknown. */
static int process_capable(const struct doctor *doctor, unsigned bit)
{
	char text[8192], *at;

	if (wh_tree_read(&doctor->tree, "/proc/self/status", text, sizeof(text)) < 0)
		return -1;
	at = strstr(text, "CapEff:");
	return at ? (int)(strtoull(at + strlen("CapEff:"), NULL, 16) >> bit & 1) : -1;
}

static void limit_memlock(const struct doctor *doctor, struct finding *finding)
{
	static const char path[] = "/proc/self/limits";
	char text[8192], *at;
	uint64_t soft;
	int length = wh_tree_read(&doctor->tree, path, text, sizeof(text));

	if (process_capable(doctor, CAP_IPC_LOCK) == 1) {
		finding_add(finding, PASS, "CAP_IPC_LOCK: no limit");
		return;
	}
	at = length < 0 ? NULL : strstr(text, "Max locked memory");
	if (!at) {
		finding_add(finding, UNKNOWN, "%s: %s", path,
			    length < 0 ? strerror(-length) : "no line for locked memory");
		return;
	}
	at += strlen("Max locked memory");
	at += strspn(at, " ");
	soft = strncmp(at, "unlimited", 9) == 0 ? UINT64_MAX : strtoull(at, NULL, 10);
	if (soft == UINT64_MAX) {
		finding_add(finding, PASS, "unlimited");
		return;
	}
	finding_add(finding,
		    soft >= MEMLOCK_LEAST ? INFO :
		    doctor_rdma(doctor)   ? WARN :
					    INFO,
		    "%llu bytes may be locked%s", (unsigned long long)soft,
		    doctor_rdma(doctor) ? ": registering more with a NIC fails with ENOMEM" :
					  ", which matters to RDMA only");
	if (doctor_rdma(doctor))
		finding_advise(finding,
			       "ulimit -l unlimited; LimitMEMLOCK=infinity in systemd; docker run "
			       "--ulimit memlock=-1; a pod: securityContext: {capabilities: {add: "
			       "[IPC_LOCK]}}");
}

static void host_ptrace(const struct doctor *doctor, struct finding *finding)
{
	int64_t scope = 0;
	int error = wh_tree_number(&doctor->tree, "/proc/sys/kernel/yama", "ptrace_scope", &scope),
	    capable = process_capable(doctor, CAP_SYS_PTRACE);

	if (error == -ENOENT) {
		finding_add(finding, PASS, "Yama is not in this kernel");
	} else if (error) {
		finding_add(finding, UNKNOWN, "kernel.yama.ptrace_scope: %s", strerror(-error));
	} else if (!scope || (capable == 1 && scope < 3)) {
		finding_add(finding, PASS, "kernel.yama.ptrace_scope is %lld", (long long)scope);
	} else {
		finding_add(
			finding, WARN,
			"kernel.yama.ptrace_scope is %lld: unshared memory of other processes is "
			"reached over TCP only",
			(long long)scope);
		finding_advise(finding,
			       "sysctl kernel.yama.ptrace_scope=0, or use shared memory "
			       "(wherry serve --memory host:SIZE); a pod: securityContext: "
			       "{capabilities: {add: [SYS_PTRACE]}} and spec: "
			       "{shareProcessNamespace: true}");
	}
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The selected word of a file such as "always [madvise] never"; "": none. */
static void huge_selected(const struct doctor *doctor, const char *folder, const char *file,
			  char *out, size_t size)
{
	char line[128] = "", *word;

	wh_tree_line(&doctor->tree, folder, file, line, sizeof(line));
	word = strchr(line, '[');
	snprintf(out, size, "%.*s", word ? (int)strcspn(word + 1, "]") : 0, word ? word + 1 : "");
}

/* Memory of the kind 'huge' takes 2 MiB pages from the pool. If the pool has too few, it takes
 * small pages and asks the kernel for transparent huge pages. */
static void mem_huge(const struct doctor *doctor, struct finding *finding)
{
	static const char folder[] = "/sys/kernel/mm/hugepages",
			  size[] = "/sys/kernel/mm/hugepages/hugepages-2048kB",
			  transparent[] = "/sys/kernel/mm/transparent_hugepage";
	int64_t pool = 0, left = 0, more = 0;
	struct wh_tree_names sizes;
	int error = wh_tree_list(&doctor->tree, folder, &sizes);
	char word[32];

	if (error || !sizes.count)
		finding_add(finding, UNKNOWN, "%s: %s", folder, error ? strerror(-error) : "empty");
	wh_tree_names_free(&sizes);
	if (finding->verdict == UNKNOWN)
		return;
	/* A machine may reserve pages of other sizes only. */
	error = wh_tree_number(&doctor->tree, size, "nr_hugepages", &pool);
	if (error && error != -ENOENT) {
		finding_add(finding, UNKNOWN, "%s: %s", size, strerror(-error));
		return;
	}
	if (wh_tree_number(&doctor->tree, size, "free_hugepages", &left))
		left = pool;
	wh_tree_number(&doctor->tree, size, "nr_overcommit_hugepages", &more);
	if (left > 0 || more > 0) {
		finding_add(finding, PASS, "%lld pages of 2 MiB are reserved, %lld of them free",
			    (long long)pool, (long long)left);
		if (more > 0)
			finding_add(finding, PASS, "up to %lld more are allocated on demand",
				    (long long)more);
		return;
	}
	huge_selected(doctor, transparent, "enabled", word, sizeof(word));
	if (strcmp(word, "always") == 0 || strcmp(word, "madvise") == 0)
		finding_add(
			finding, INFO,
			"no page of 2 MiB is %s: memory of the kind 'huge' gets transparent huge "
			"pages if the kernel has any (transparent_hugepage is %s)",
			pool ? "free" : "reserved", word);
	else
		finding_add(
			finding, INFO,
			"no page of 2 MiB is %s, and transparent huge pages are off: memory of the "
			"kind 'huge' has small pages",
			pool ? "free" : "reserved");
	finding_advise(finding, "sysctl vm.nr_hugepages=N reserves N of them");
}

static void mem_maps(const struct doctor *doctor, struct finding *finding)
{
	int64_t most;
	int error = wh_tree_number(&doctor->tree, "/proc/sys/vm", "max_map_count", &most);

	if (error) {
		finding_add(finding, UNKNOWN, "vm.max_map_count: %s", strerror(-error));
		return;
	}
	finding_add(finding, most < MAPS_LEAST ? WARN : PASS, "vm.max_map_count is %lld",
		    (long long)most);
	if (most < MAPS_LEAST)
		finding_advise(finding,
			       "sysctl vm.max_map_count=262144: each separate mapping counts");
}

/* ---- control groups -------------------------------------------------------------------------- */

/* A control group of this process: its own, or one above. */
struct cgroup {
	char folder[WH_TREE_PATH / 2];
	size_t top; /* length of the name of the topmost visible group */
	bool version_1;
};

/* The path of a controller's group in a line such as "9:memory:/pod", "4:cpu,cpuacct:/pod" or
 * "0::/pod"; NULL: the line is of other controllers. */
static const char *cgroup_path(const char *line, const char *controller)
{
	const char *word = strchr(line, ':'), *path = word ? strchr(word + 1, ':') : NULL;
	size_t length = strlen(controller);

	if (!path)
		return NULL;
	for (word++; word <= path; word += strcspn(word, ",:") + 1)
		if (strcspn(word, ",:") == length && strncmp(word, controller, length) == 0)
			return path + 1;
	return NULL;
}

/* The group of a controller of version 1; "": the group of version 2. */
static bool cgroup_find(const struct doctor *doctor, const char *controller, const char *text,
			struct cgroup *out)
{
	for (const char *line = text; line; line = strchr(line, '\n')) {
		const char *path;

		line += *line == '\n';
		path = cgroup_path(line, controller);
		if (!path)
			continue;
		snprintf(out->folder, sizeof(out->folder), "/sys/fs/cgroup%s%s",
			 *controller ? "/" : "", controller);
		out->top = strlen(out->folder);
		out->version_1 = *controller;
		snprintf(out->folder + out->top, sizeof(out->folder) - out->top, "%.*s",
			 (int)strcspn(path, "\n"), path);
		/* A container may see its own group as the topmost one, but under the host's name
		 * for it; ".." is a group outside of the container's view. */
		if (strstr(out->folder, "/..") ||
		    (out->version_1 && wh_tree_exists(&doctor->tree, out->folder)))
			out->folder[out->top] = '\0';
		if (out->folder[strlen(out->folder) - 1] == '/')
			out->folder[strlen(out->folder) - 1] = '\0';
		return true;
	}
	return false;
}

/* The group that limits this process: of version 1 if the controller is there. False: the finding
 * has the error. */
static bool cgroup_folder(const struct doctor *doctor, const char *controller, struct cgroup *out,
			  struct finding *finding)
{
	char text[4096];
	int length = wh_tree_read(&doctor->tree, "/proc/self/cgroup", text, sizeof(text));

	if (length < 0) {
		finding_add(finding, UNKNOWN, "/proc/self/cgroup: %s", strerror(-length));
		return false;
	}
	if (*controller && cgroup_find(doctor, controller, text, out))
		return true;
	if (cgroup_find(doctor, "", text, out))
		return true;
	finding_add(finding, UNKNOWN, "no control groups of version 2");
	return false;
}

/* Go to the group above. False: this is the topmost one. */
static bool cgroup_up(struct cgroup *group)
{
	if (strlen(group->folder) <= group->top)
		return false;
	*strrchr(group->folder, '/') = '\0';
	return true;
}

#define NO_LIMIT (INT64_C(1) << 60) /* version 1 writes "no limit" as the largest page count */

/* Check one group's limit; true: it has none. *shown: the group shows its limit. */
static bool cgroup_unlimited(const struct doctor *doctor, const struct cgroup *group, bool own,
			     bool *shown, struct finding *finding)
{
	const char *file = group->version_1 ? "memory.limit_in_bytes" : "memory.max";
	char text[64], most[32], now[32];
	int64_t limit, used;
	int error = wh_tree_line(&doctor->tree, group->folder, file, text, sizeof(text));
	bool near;

	/* The topmost group has no limit and no file. If another group lacks the file, then it was
	 * not recorded. */
	*shown = error != -ENOENT || strlen(group->folder) == group->top;
	if (error == -ENOENT && (!own || *shown))
		return true;
	if (!error && strcmp(text, "max") == 0)
		return true;
	if (!error)
		error = wh_tree_number(&doctor->tree, group->folder, file, &limit);
	if (error) {
		finding_add(finding, UNKNOWN, "%s/%s: %s", group->folder, file, strerror(-error));
		return false;
	}
	if (limit >= NO_LIMIT)
		return true;
	topo_size(most, sizeof(most), (uint64_t)limit);
	if (wh_tree_number(&doctor->tree, group->folder,
			   group->version_1 ? "memory.usage_in_bytes" : "memory.current", &used)) {
		finding_add(finding, UNKNOWN, "a limit of %s in %s; usage unknown", most,
			    group->folder);
		return false;
	}
	topo_size(now, sizeof(now), (uint64_t)used);
	near = used > limit / 10 * 9;
	finding_add(finding, near ? WARN : INFO, "%s of %s are used in %s", now, most,
		    group->folder);
	if (near)
		finding_advise(finding,
			       "raise the memory limit of the container, or of the group above: "
			       "pinned memory "
			       "cannot be swapped out");
	return false;
}

static void cgroup_memory(const struct doctor *doctor, struct finding *finding)
{
	struct cgroup group;
	bool none = true, all = true, own = true, shown;

	if (!cgroup_folder(doctor, "memory", &group, finding))
		return;
	/* The limits of all groups above apply, too. */
	do {
		none &= cgroup_unlimited(doctor, &group, own, &shown, finding);
		all &= shown;
		own = false;
	} while (cgroup_up(&group));
	if (none)
		finding_add(finding, PASS,
			    all ? "no limit" : "no limit of its own; the groups above show none");
}

/* How many CPUs a list such as "0-3,8" has; -1: not a list. */
static long cpus_count(const char *list)
{
	long count = 0;

	while (*list) {
		char *end;
		long first = strtol(list, &end, 10), last = first;

		if (end == list)
			return -1;
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		if (first < 0 || last < first || last > CPUS_MOST)
			return -1;
		count += last - first + 1;
		list = end + (*end == ',');
	}
	return count;
}

static void cgroup_cpus(const struct doctor *doctor, struct finding *finding)
{
	struct cgroup group;
	char text[512];
	int threads = doctor->topology ? doctor->topology->cpu.threads : -1, error;
	long count;

	if (!cgroup_folder(doctor, "", &group, finding))
		return;
	error = wh_tree_line(&doctor->tree, group.folder, "cpuset.cpus.effective", text,
			     sizeof(text));
	count = error ? -1 : cpus_count(text);
	if (error == -ENOENT) {
		finding_add(finding, PASS, "no cpuset");
	} else if (error || count <= 0) {
		finding_add(finding, UNKNOWN, "%s/cpuset.cpus.effective: %s", group.folder,
			    error ? strerror(-error) : "no list of CPUs");
	} else if (count == 1) {
		finding_add(finding, WARN, "one CPU (%s): Wherry's threads compete for it", text);
		finding_advise(finding, "give the container two CPUs or more, near its GPUs");
	} else {
		finding_add(finding, threads > 0 && count < threads ? INFO : PASS, "%ld CPUs: %s",
			    count, text);
	}
}

/* Check lines such as "mlx5_0 hca_handle=2 hca_object=2000"; "max": no limit. True: a device has a
 * limit. */
static bool objects_limited(char *text, const char *path, struct finding *finding)
{
	bool limited = false;
	char *line;

	while ((line = strsep(&text, "\n"))) {
		const char *objects = strstr(line, "hca_object=");

		if (!objects || objects[strlen("hca_object=")] == 'm')
			continue;
		limited = true;
		finding_add(finding, WARN, "%.200s: registrations count as objects", line);
		finding_advise(finding, "echo 'DEVICE hca_object=max hca_handle=max' > %s", path);
	}
	return limited;
}

static void cgroup_rdma(const struct doctor *doctor, struct finding *finding)
{
	struct cgroup group;
	bool limited = false;

	if (!cgroup_folder(doctor, "rdma", &group, finding))
		return;
	do {
		char path[WH_TREE_PATH], text[4096];
		int length;

		snprintf(path, sizeof(path), "%s/rdma.max", group.folder);
		length = wh_tree_read(&doctor->tree, path, text, sizeof(text));
		if (length >= 0)
			limited |= objects_limited(text, path, finding);
		else if (length != -ENOENT)
			finding_add(finding, UNKNOWN, "%s: %s", path, strerror(-length));
	} while (cgroup_up(&group));
	if (!limited)
		finding_add(finding, PASS, "no limit");
}

/* ---- libraries that are opened at run time --------------------------------------------------- */

static void lib_crypto(const struct doctor *doctor, struct finding *finding)
{
	struct crypto_facts facts;

	facts_crypto(&doctor->tree, &facts);
	if (!facts.known) {
		finding_add(finding, UNKNOWN, "the recorded tree has no crypto.txt");
	} else if (facts.error) {
		finding_add(finding, FAIL, "engines can neither listen nor connect: %s", facts.why);
		finding_advise(finding,
			       facts.error == EIO ?
				       "allow SHA-256 and keys of any length in OpenSSL's policy" :
				       "install libssl3 (Debian, Ubuntu) or openssl-libs");
	} else {
		finding_add(finding, PASS, "OpenSSL's libcrypto computes HMAC-SHA-256");
	}
}

/* A missing libibverbs matters only to a machine with an RDMA NIC. */
static void lib_verbs(const struct doctor *doctor, struct finding *finding)
{
	const struct verbs_facts *verbs = &doctor->verbs;

	if (!verbs->known) {
		finding_add(finding, UNKNOWN, "%s",
			    wh_tree_is_live(&doctor->tree) ? "libibverbs did not answer" :
							     "the recorded tree has no verbs.txt");
	} else if (verbs->error && verbs->error != ENOENT && verbs->error != ELIBBAD) {
		/* The library works: the kernel keeps it from listing NICs. */
		finding_add(finding, doctor_rdma(doctor) ? WARN : INFO, "%s", verbs->why);
		if (doctor_rdma(doctor))
			finding_advise(
				finding,
				"modprobe ib_uverbs; in a container --device=/dev/infiniband");
	} else if (verbs->error) {
		finding_add(finding, doctor_rdma(doctor) ? WARN : INFO, "no RDMA: %s", verbs->why);
		if (doctor_rdma(doctor))
			finding_advise(
				finding,
				"install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or "
				"rdma-core, 34 or later");
	} else {
		finding_add(finding, PASS, "libibverbs answers and lists %d NIC%s", verbs->count,
			    verbs->count == 1 ? "" : "s");
	}
}

const struct check doctor_host_checks[] = {
	{ .id = "lib.crypto",
	  .title = "OpenSSL's libcrypto, with which engines authenticate",
	  .needs = 0,
	  .machine = lib_crypto },
	{ .id = "lib.verbs",
	  .title = "libibverbs, for RDMA",
	  .needs = NEEDS_SYSFS | NEEDS_VERBS,
	  .machine = lib_verbs },
	{ .id = "window.ways",
	  .title = "CPU windows on GPU memory can be opened",
	  .needs = NEEDS_NVML | NEEDS_CUDA,
	  .subjects = GPUS,
	  .machine = window_backends },
	{ .id = "gdrdrv.node",
	  .title = "/dev/gdrdrv matches its module",
	  .needs = 0,
	  .machine = gdrdrv_node },
	{ .id = "limit.memlock",
	  .title = "this process may lock memory",
	  .needs = NEEDS_SYSFS,
	  .machine = limit_memlock },
	{ .id = "host.ptrace",
	  .title = "memory of other processes can be read and written",
	  .needs = 0,
	  .machine = host_ptrace },
	{ .id = "mem.huge", .title = "huge pages", .needs = 0, .machine = mem_huge },
	{ .id = "mem.maps", .title = "vm.max_map_count", .needs = 0, .machine = mem_maps },
	{ .id = "cgroup.memory",
	  .title = "memory limit of the control group",
	  .needs = 0,
	  .machine = cgroup_memory },
	{ .id = "cgroup.cpus",
	  .title = "CPUs of the control group",
	  .needs = NEEDS_SYSFS,
	  .machine = cgroup_cpus },
	{ .id = "cgroup.rdma",
	  .title = "limit on RDMA objects of the control group",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .machine = cgroup_rdma },
	{ 0 },
};
