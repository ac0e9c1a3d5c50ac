/* SPDX-License-Identifier: Apache-2.0 */
/* wherry explain --errno: what each errno means in Wherry, and what to try. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "explain/explain.h"
#include "output.h"

static const struct meaning {
	int error;
	const char *means; /* where it comes from in Wherry */
	const char *try;
} meanings[] = {
	{ EPERM, "the process has forked since it opened the engine, or the kernel forbids it",
	  "open an engine of its own in the child; for process_vm see kernel.yama.ptrace_scope" },
	{ ENOENT, "no such region, setting or file",
	  "wherry explain URL lists the peer's regions" },
	{ E2BIG, "the program was built for a newer library",
	  "install that version, or build again" },
	{ EAGAIN, "nothing there yet", "wait longer" },
	{ ENOMEM, "no memory",
	  "use less memory, or more huge pages (vm.nr_hugepages); see ulimit -v" },
	{ EACCES, "the region does not grant it, or the other side has another key",
	  "serve it without --read-only; give both sides the same key by the setting "
	  "keyfile" },
	{ EBUSY, "still in use", "wait for or cancel the batch; close what was opened from it" },
	{ EEXIST, "the name is taken", "choose another name" },
	{ EINVAL, "an argument or a setting is wrong; the text names it", "wherry config" },
	{ EMFILE, "no file descriptors left", "raise ulimit -n" },
	{ ENOSPC, "the buffer, the disk or the region is full", "make room, or copy less" },
	{ ERANGE, "the range is outside the region",
	  "check offset and length against the region's" },
	{ EDEADLK, "called from a callback, where it would wait for itself",
	  "call it on another thread, or use a completion queue" },
	{ EPROTO, "something that is not Wherry answers there", "check the port" },
	{ ELIBACC, "there is no OpenSSL to prove a key with", "install libssl3 (openssl-libs)" },
	{ EPROTONOSUPPORT, "the peer speaks another version of the protocol",
	  "use the same release on both sides" },
	{ EOPNOTSUPP, "no transport can do it, or not the required one",
	  "wherry explain URL says why each was refused; see --require" },
	{ EADDRINUSE, "another process listens there", "choose another port, or 0 for a free one" },
	{ EADDRNOTAVAIL, "the address is not one of this machine's", "ip address lists them" },
	{ ENETUNREACH, "there is no route to that network", "check the address and ip route" },
	{ EHOSTUNREACH, "the host cannot be found or reached", "check its name and the firewall" },
	{ ECONNREFUSED, "nobody listens there", "start wherry serve; check the port" },
	{ ECONNABORTED, "the other side closed the connection while it was being opened",
	  "check the port, and what the other side logs" },
	{ ECONNRESET, "the peer is lost: it ended or closed the connection",
	  "submit again once it is back" },
	{ EBADMSG, "bytes were damaged on the way to or from the peer",
	  "check the network between the two hosts: NICs, proxies, tunnels" },
	{ ETIMEDOUT, "the peer did not answer in time",
	  "check the firewall; see the setting timeout" },
	{ ESTALE, "the peer restarted, or the region is gone",
	  "open a new peer and look the region up again" },
	{ ECANCELED, "the batch was cancelled", "submit it again" },
	{ EINPROGRESS, "the batch has not completed yet", "wait for it" },
};

int explain_errno(const char *text, bool json)
{
	const char *name;
	int error = errno_parse(text, &name);
	const struct meaning *meaning = NULL;

	if (!error)
		return usage_error("--errno: '%s' is no errno; write 111, -111 or ECONNREFUSED",
				   text);
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].error == error)
			meaning = &meanings[i];
	if (json) {
		json_t *object = output_new();

		json_object_set_new(object, "errno", json_integer(error));
		json_object_set_new(object, "name", json_string(name));
		json_object_set_new(object, "text", json_string(strerror(error)));
		json_object_set_new(object, "means", output_text(meaning ? meaning->means : NULL));
		json_object_set_new(object, "try", output_text(meaning ? meaning->try : NULL));
		return output_print(object);
	}
	printf("%s (%d): %s\n", name, error, strerror(error));
	if (meaning)
		printf("In Wherry: %s.\nTry: %s.\n", meaning->means, meaning->try);
	else
		printf("Wherry itself does not return it; it comes from the system.\n");
	return EXIT_PASS;
}
