/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point of libwherry-registry.so, which holds the registries that need other libraries.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/module.h"

#define KEY_FILE_MAX (64 << 10)

static const struct wh_registry_ops *const known[] = {
	&wh_registry_http,
	&wh_registry_etcd,
#ifdef HAVE_HIREDIS
	&wh_registry_redis,
#endif
	NULL,
};

static const struct wh_registry_module module = {
	.version = WH_REGISTRY_MODULE,
	.ops = known,
	.text = wh_fail_text,
};

int wh_registry_key_check(const struct wh_registry_url *url)
{
	/* PKCS #8 has it in its first line, older formats in their second. */
	static const char word[] = "ENCRYPTED";
	char bytes[KEY_FILE_MAX];
	bool encrypted;
	ssize_t got;
	int fd;

	if (!*url->key)
		return 0;
	fd = open(url->key, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	got = fd < 0 ? -1 : read(fd, bytes, sizeof(bytes));
	if (got < 0) {
		int error = wh_fail(errno, "registry: key=%.150s: %s", url->key, strerror(errno));

		if (fd >= 0)
			close(fd);
		return error;
	}
	close(fd);
	encrypted = memmem(bytes, (size_t)got, word, sizeof(word) - 1);
	explicit_bzero(bytes, (size_t)got);
	return encrypted ? wh_fail(EINVAL,
				   "registry: key=%.150s: the file is encrypted with a password; "
				   "use an "
				   "unencrypted PEM file with the private key of cert=",
				   url->key) :
			   0;
}

wh_registry_module_fn wh_registry_module;

__attribute__((visibility("default"))) const struct wh_registry_module *wh_registry_module(void)
{
	return &module;
}
