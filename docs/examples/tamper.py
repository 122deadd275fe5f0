"""Two forgeries of a certificate: one edited by hand, one edited well, with every hash computed anew.

Run as `python tamper.py certificate.json FOLDER`; it writes edited.json and rehashed.json into the folder.
"""

import dataclasses
import pathlib
import sys

import dpmech as dm

source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
certificate = dm.Certificate.load(source)
weaker = dataclasses.replace(certificate, sigma=0.98 * certificate.sigma)
edited = source.read_text().replace(str(certificate.sigma), str(weaker.sigma))
(folder / "edited.json").write_text(edited)
(folder / "rehashed.json").write_text(
    weaker.to_json()
)  # weaker.save would refuse
