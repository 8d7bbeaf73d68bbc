"""The example on an object store, without an account: `python -m tests.servers.demo`, or `make demo STORE=s3`.

This runs the demo in a separate process against the strict S3 server of the tests. The demo gets temporary credentials
with a session token from the environment, as a program with a role does. Afterwards the bucket is copied to
`.demo/bucket`, and all files that the demo left are searched for the credentials, as a thief of a laptop might do.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from example_project import places
from tests.plugin.leaks import leaks
from tests.servers.accounts import Account
from tests.servers.objects import HOST, REQUESTS, Bucket, serve
from tests.servers.s3_server import S3Server

CHECKOUT = Path(__file__).parents[2]
BUCKET = "lake"
_HOUR = 3600
_POLICY = {
    "Effect": "Allow",
    "Action": ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
    "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
}


def main(port: int) -> int:
    """Run the demo on a server at a port; return its exit code, or 1 if it left a credential in a file."""
    key_id = f"ASIA{secrets.token_hex(8).upper()}"
    account = Account(
        name="demo",
        secret_access_key=secrets.token_hex(20),
        session_token=secrets.token_hex(40),
        expires=time.time() + _HOUR,
        statements=(_POLICY,),
    )
    server = S3Server({key_id: account})
    server.buckets[BUCKET] = Bucket()
    threading.Thread(target=lambda: asyncio.run(serve(server.answer, port)), daemon=True).start()
    _wait_for(f"http://{HOST}:{port}{REQUESTS}")
    environment = {
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": account.secret_access_key,
        "AWS_SESSION_TOKEN": account.session_token,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ALLOW_HTTP": "true",
        places.TABLES_VARIABLE: f"s3://{BUCKET}/tables",
    }
    command = [sys.executable, "-m", "example_project.demo"]
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **environment}, check=False)
    if done.returncode:
        return done.returncode
    _copy(server.buckets[BUCKET], places.bucket())
    found = [path for path, _ in leaks(places.root(), account.secret_access_key, account.session_token)]
    searched = f"Searched for the secret and the session token: {places.root()}, with Dagster's databases and logs, and"
    told = "".join(f"\nA credential is in {path}" for path in found) or " Neither is in any file."
    sys.stdout.write(f"\n{searched}\nevery object of the bucket, which is copied to {places.bucket()}.{told}\n")
    return 1 if found else 0


def _wait_for(url: str) -> None:
    # No proxy is used, since the server is on this machine.
    opener = build_opener(ProxyHandler({}))
    for _ in range(100):
        try:
            opener.open(url, timeout=10).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server at {url}")


def _copy(bucket: Bucket, folder: Path) -> None:
    for key, found in bucket.objects.items():
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found.data)


if __name__ == "__main__":
    from tests.conftest import free_port

    sys.exit(main(free_port()))
