"""Engine `ctranslate2`: conversion to CTranslate2, and decoding with it."""
