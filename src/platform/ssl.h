/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's libssl, opened at run time. The policy is in net/tls.h. */
#ifndef WH_PLATFORM_SSL_H
#define WH_PLATFORM_SSL_H

#include <stddef.h>
#include <stdint.h>

/* Our own declarations of functions that have not changed since OpenSSL 1.1.1. A unit test compares
 * them with the headers of the installed OpenSSL. */
struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_session_st;
struct ssl_cipher_st;
struct bio_st;
struct bio_method_st;
struct x509_st;
struct x509_store_ctx_st;
struct X509_name_st;
struct evp_md_st;

typedef int (*wh_ssl_verify)(int good, struct x509_store_ctx_st *store);
typedef int (*wh_ssl_password)(char *into, int room, int writing, void *argument);
typedef int (*wh_ssl_psk_use)(struct ssl_st *ssl, const struct evp_md_st *digest,
			      const unsigned char **identity, size_t *identity_length,
			      struct ssl_session_st **session);
typedef int (*wh_ssl_psk_find)(struct ssl_st *ssl, const unsigned char *identity,
			       size_t identity_length, struct ssl_session_st **session);

typedef int (*wh_bio_read)(struct bio_st *bio, char *bytes, int length);
typedef int (*wh_bio_write)(struct bio_st *bio, const char *bytes, int length);
typedef long (*wh_bio_ctrl)(struct bio_st *bio, int command, long number, void *pointer);

#define WH_SSL_FUNCTIONS(X)                                                                        \
	X(const struct ssl_method_st *, TLS_method, (void))                                        \
	X(struct ssl_ctx_st *, SSL_CTX_new, (const struct ssl_method_st *method))                  \
	X(void, SSL_CTX_free, (struct ssl_ctx_st * context))                                       \
	X(long, SSL_CTX_ctrl,                                                                      \
	  (struct ssl_ctx_st * context, int command, long number, void *pointer))                  \
	X(uint64_t, SSL_CTX_set_options, (struct ssl_ctx_st * context, uint64_t options))          \
	X(int, SSL_CTX_set_ciphersuites, (struct ssl_ctx_st * context, const char *names))         \
	X(int, SSL_CTX_set_num_tickets, (struct ssl_ctx_st * context, size_t count))               \
	X(void, SSL_CTX_set_default_passwd_cb,                                                     \
	  (struct ssl_ctx_st * context, wh_ssl_password callback))                                 \
	X(void, SSL_CTX_set_default_passwd_cb_userdata,                                            \
	  (struct ssl_ctx_st * context, void *argument))                                           \
	X(int, SSL_CTX_use_certificate_chain_file,                                                 \
	  (struct ssl_ctx_st * context, const char *path))                                         \
	X(int, SSL_CTX_use_PrivateKey_file,                                                        \
	  (struct ssl_ctx_st * context, const char *path, int type))                               \
	X(int, SSL_CTX_check_private_key, (const struct ssl_ctx_st *context))                      \
	X(int, SSL_CTX_load_verify_locations,                                                      \
	  (struct ssl_ctx_st * context, const char *file, const char *directory))                  \
	X(void, SSL_CTX_set_verify,                                                                \
	  (struct ssl_ctx_st * context, int mode, wh_ssl_verify callback))                         \
	X(void, SSL_CTX_set_psk_use_session_callback,                                              \
	  (struct ssl_ctx_st * context, wh_ssl_psk_use callback))                                  \
	X(void, SSL_CTX_set_psk_find_session_callback,                                             \
	  (struct ssl_ctx_st * context, wh_ssl_psk_find callback))                                 \
	X(struct ssl_session_st *, SSL_SESSION_new, (void))                                        \
	X(void, SSL_SESSION_free, (struct ssl_session_st * session))                               \
	X(int, SSL_SESSION_set1_master_key,                                                        \
	  (struct ssl_session_st * session, const unsigned char *key, size_t length))              \
	X(int, SSL_SESSION_set_cipher,                                                             \
	  (struct ssl_session_st * session, const struct ssl_cipher_st *cipher))                   \
	X(int, SSL_SESSION_set_protocol_version, (struct ssl_session_st * session, int version))   \
	X(const struct ssl_cipher_st *, SSL_CIPHER_find,                                           \
	  (struct ssl_st * ssl, const unsigned char *id))                                          \
	X(const char *, SSL_CIPHER_get_name, (const struct ssl_cipher_st *cipher))                 \
	X(struct ssl_st *, SSL_new, (struct ssl_ctx_st * context))                                 \
	X(void, SSL_free, (struct ssl_st * ssl))                                                   \
	X(void, SSL_set_connect_state, (struct ssl_st * ssl))                                      \
	X(void, SSL_set_accept_state, (struct ssl_st * ssl))                                       \
	X(int, SSL_set_fd, (struct ssl_st * ssl, int fd))                                          \
	X(void, SSL_set0_rbio, (struct ssl_st * ssl, struct bio_st * bio))                         \
	X(void, SSL_set0_wbio, (struct ssl_st * ssl, struct bio_st * bio))                         \
	X(struct bio_st *, SSL_get_rbio, (const struct ssl_st *ssl))                               \
	X(struct bio_st *, SSL_get_wbio, (const struct ssl_st *ssl))                               \
	X(int, SSL_do_handshake, (struct ssl_st * ssl))                                            \
	X(int, SSL_read, (struct ssl_st * ssl, void *bytes, int length))                           \
	X(int, SSL_write, (struct ssl_st * ssl, const void *bytes, int length))                    \
	X(int, SSL_key_update, (struct ssl_st * ssl, int type))                                    \
	X(int, SSL_session_reused, (const struct ssl_st *ssl))                                     \
	X(int, SSL_pending, (const struct ssl_st *ssl))                                            \
	X(int, SSL_get_error, (const struct ssl_st *ssl, int result))                              \
	X(const struct ssl_cipher_st *, SSL_get_current_cipher, (const struct ssl_st *ssl))        \
	X(int, SSL_export_keying_material,                                                         \
	  (struct ssl_st * ssl, unsigned char *out, size_t length, const char *label,              \
	   size_t label_length, const unsigned char *context, size_t context_length,               \
	   int use_context))                                                                       \
	X(struct bio_method_st *, BIO_meth_new, (int type, const char *name))                      \
	X(void, BIO_meth_free, (struct bio_method_st * method))                                    \
	X(int, BIO_meth_set_read, (struct bio_method_st * method, wh_bio_read function))           \
	X(int, BIO_meth_set_write, (struct bio_method_st * method, wh_bio_write function))         \
	X(int, BIO_meth_set_ctrl, (struct bio_method_st * method, wh_bio_ctrl function))           \
	X(struct bio_st *, BIO_new, (const struct bio_method_st *method))                          \
	X(void, BIO_set_flags, (struct bio_st * bio, int flags))                                   \
	X(long, BIO_ctrl, (struct bio_st * bio, int command, long number, void *pointer))          \
	X(void, X509_free, (struct x509_st * certificate))                                         \
	X(struct X509_name_st *, X509_get_subject_name, (const struct x509_st *certificate))       \
	X(int, X509_NAME_get_text_by_NID,                                                          \
	  (const struct X509_name_st *name, int nid, char *text, int size))                        \
	X(struct x509_st *, X509_STORE_CTX_get_current_cert,                                       \
	  (const struct x509_store_ctx_st *store))                                                 \
	X(int, X509_STORE_CTX_get_error, (const struct x509_store_ctx_st *store))                  \
	X(const char *, X509_verify_cert_error_string, (long error))                               \
	X(unsigned long, ERR_peek_error, (void))                                                   \
	X(const char *, ERR_reason_error_string, (unsigned long error))                            \
	X(void, ERR_clear_error, (void))

/* Constants that are macros in OpenSSL's headers. */
enum {
	WH_TLS1_3_VERSION = 0x0304,
	WH_SSL_CTRL_MODE = 33,
	WH_SSL_CTRL_SET_SESS_CACHE_MODE = 44,
	WH_SSL_CTRL_SET_MIN_PROTO_VERSION = 123,
	WH_SSL_MODE_RELEASE_BUFFERS = 0x10,
	WH_SSL_SESS_CACHE_OFF = 0,
	WH_SSL_VERIFY_BOTH = 3, /* PEER, FAIL_IF_NO_PEER_CERT */
	WH_SSL_FILETYPE_PEM = 1,
	WH_SSL_ERROR_SSL = 1,
	WH_SSL_ERROR_WANT_READ = 2,
	WH_SSL_ERROR_WANT_WRITE = 3,
	WH_SSL_ERROR_SYSCALL = 5,
	WH_SSL_ERROR_ZERO_RETURN = 6,
	WH_SSL_KEY_UPDATE_NOT_REQUESTED = 0, /* the other side keeps its sending key */
	WH_SSL_OP_ENABLE_KTLS = 1 << 3,
	WH_SSL_OP_NO_TICKET = 1 << 14,
	WH_BIO_TYPE_SOURCE_SINK = 0x0400,
	WH_BIO_FLAGS_READ_AGAIN = 0x09, /* READ, SHOULD_RETRY */
	WH_BIO_CTRL_FLUSH = 11,
	WH_BIO_CTRL_GET_KTLS_SEND = 73,
	WH_BIO_CTRL_GET_KTLS_RECV = 76,
	WH_NID_COMMON_NAME = 13,
};

struct wh_ssl {
	void *library;
#define X(type, name, arguments) type(*name) arguments;
	WH_SSL_FUNCTIONS(X)
#undef X
	struct x509_st *(*peer_certificate)(const struct ssl_st *ssl); /* owned by the caller */
};

/* `path` NULL: libssl.so.3, or else libssl.so.1.1. 0, or -ELIBACC: the text names what is
 * missing. */
int wh_ssl_open(struct wh_ssl *ssl, const char *path);
void wh_ssl_close(struct wh_ssl *ssl);

#endif
